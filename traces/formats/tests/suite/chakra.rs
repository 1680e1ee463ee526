//! Chakra execution traces, written and read back.

use super::drafts::plain;
use std::collections::BTreeMap;
use trainwright_formats::chakra::{Node, NodeType, Value, groups, read, write_rank};
use trainwright_lower::lower_every_rank;
use trainwright_spec::program::{Op, Program, RankProgram};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::workload::Cost;

fn traces() -> (Program, Vec<Vec<Node>>) {
    let mut plan = plain();
    (plan.mesh.tensor, plan.mesh.pipeline, plan.mesh.data) = (2, 2, 2);
    plan.job.global_batch = 16;
    plan.stages = vec!["6 none".parse().unwrap(), "6 none".parse().unwrap()];
    plan.check("plan").unwrap();
    let program = lower_every_rank(&plan);
    let cost = |_: &RankProgram, _: &Op| Cost { time: Picoseconds(2_500_000), ..Cost::default() };
    let trace = |rank: usize| {
        let mut bytes = Vec::new();
        write_rank(&program, rank, &cost, &mut bytes).unwrap();
        let (metadata, nodes) = read(&bytes, "trace").unwrap();
        assert_eq!(metadata.attributes[0].value, Some(Value::Int32(rank as i32)));
        nodes
    };
    let nodes = (0..program.ranks.len()).map(trace).collect();
    (program, nodes)
}

fn number(node: &Node, name: &str) -> i64 {
    let found = node.attributes.iter().find(|attribute| attribute.name == name);
    match found.and_then(|attribute| attribute.value.clone()) {
        Some(Value::Int32(number)) => i64::from(number),
        Some(Value::Int64(number)) => number,
        other => panic!("{}: {name} is {other:?}", node.name),
    }
}

#[test]
fn every_op_has_a_node_that_waits_for_earlier_ones_only() {
    let (program, traces) = traces();
    for (rank, nodes) in program.ranks.iter().zip(&traces) {
        let ops: usize = rank.calls.iter().map(|call| program.segments[call.segment].ops.len()).sum();
        assert_eq!(nodes.len(), ops);
        for (id, node) in nodes.iter().enumerate() {
            assert_eq!(node.id, id as u64);
            assert!(node.data_dependencies.iter().all(|other| *other < node.id), "{}", node.name);
            let compute = node.kind == NodeType::Compute as i32 && number(node, "num_ops") > 0;
            assert!(!compute || node.duration_micros == 3, "2.5 us are rounded to 3");
        }
    }
}

#[test]
fn messages_and_collectives_match() {
    let (program, traces) = traces();
    let ends = |kind: NodeType, other: &str| {
        let mut ends: BTreeMap<(i64, i64, i64, i64), usize> = BTreeMap::new();
        for (rank, nodes) in traces.iter().enumerate() {
            for node in nodes.iter().filter(|node| node.kind == kind as i32) {
                let (this, peer) = (rank as i64, number(node, other));
                let (from, to) = if kind == NodeType::Send { (this, peer) } else { (peer, this) };
                *ends.entry((from, to, number(node, "comm_tag"), number(node, "comm_size"))).or_default() +=
                    1;
            }
        }
        ends
    };
    let (sent, received) = (ends(NodeType::Send, "comm_dst"), ends(NodeType::Receive, "comm_src"));
    // Four pipelines of two stages, four microbatches, one message each way.
    assert_eq!(sent.len(), 4 * 4 * 2);
    assert_eq!(sent, received);
    assert!(sent.values().all(|count| *count == 1), "tags distinguish messages");
    // Every member of a group does the same collectives in the same order.
    for (index, group) in program.groups.iter().enumerate() {
        let collectives_of = |rank: usize| -> Vec<(i64, i64)> {
            let name = Some(Value::Text(index.to_string()));
            let named = |node: &&Node| {
                node.attributes.iter().any(|attribute| attribute.name == "pg_name" && attribute.value == name)
            };
            let collectives = traces[rank].iter().filter(|node| node.kind == NodeType::Collective as i32);
            collectives
                .filter(named)
                .map(|node| (number(node, "comm_type"), number(node, "comm_size")))
                .collect()
        };
        assert!(
            group.ranks.iter().all(|rank| collectives_of(*rank) == collectives_of(group.ranks[0])),
            "group {index}"
        );
    }
    assert!(groups(&program).starts_with("{\n  \"0\": ["));
}

#[test]
fn other_files_are_refused() {
    let error = read(&[200, 1, 2], "file").unwrap_err().to_string();
    assert!(error.starts_with("file: not an execution trace of Chakra: "), "{error}");
}
