//! Invariants of every plan's timeline, on random small plans.

use crate::common::Draft;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngSeed, TestRunner};
use std::collections::BTreeMap;
use trainwright_lower::lower;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::catalog;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::{MemoryKind, Program, Stream, Work};
use trainwright_spec::schedule::{Action, ActionKind};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::report::{Report, TimeShares};
use trainwright_timeline::timeline::{Activity, Span, Timeline};

/// A few blocks of small models on up to 96 ranks, in nodes of any size that divides them.
fn drafts() -> impl Strategy<Value = Draft> {
    let mesh = (select(vec![1, 2, 3, 4]), 1usize..=3, 1usize..=8);
    let schedule = select(vec![("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3)]);
    let model = select(vec!["gpt2", "bert-base", "gpt3-350m", "llama-7b", "gpt-neox-20b", "mixtral-8x7b"]);
    let choices = (
        (select(Recompute::ALL.to_vec()), 0usize..=2),
        any::<bool>(),
        select(vec!["none", "zero1"]),
        select(catalog::names("stacks")),
    );
    let sizes = (0usize..3, 1usize..=6, 1usize..=2, any::<Index>());
    let all = (mesh, schedule, model, choices, sizes);
    let draft = all.prop_map(|(mesh, schedule, model, choices, sizes)| {
        let (tensor, pipeline, data) = mesh;
        let (schedule, virtual_stages) = if pipeline == 1 { ("1f1b", 1) } else { schedule };
        let ((recompute, full_blocks), sequence_parallel, data_sharding, stack) = choices;
        let (more_blocks, groups, micro_batch, node) = sizes;
        let ranks = tensor * pipeline * data;
        let node_sizes: Vec<usize> = (1..=8).filter(|gpus| ranks % gpus == 0).collect();
        Draft {
            blocks: pipeline * virtual_stages + more_blocks,
            gpus_per_node: *node.get(&node_sizes),
            schedule,
            virtual_stages,
            stack,
            sequence: 384,
            micro_batch,
            microbatches: if schedule == "interleaved" { groups * pipeline } else { groups },
            recompute,
            full_blocks,
            sequence_parallel,
            data_sharding,
            ..Draft::of(model, [tensor, pipeline, data])
        }
    });
    draft.prop_filter("a plan that is not legal", |draft| draft.try_plan().is_ok())
}

fn spans_of(timeline: &Timeline, rank: usize) -> impl Iterator<Item = &Span> {
    timeline.spans.iter().filter(move |span| span.rank as usize == rank)
}

/// Ops of one stream follow each other, so the step is at least as long as the work of each.
fn streams_work_no_longer_than_the_step(timeline: &Timeline) {
    for rank in 0..timeline.ranks.len() {
        for stream in Stream::ALL {
            let spans: Vec<&Span> = spans_of(timeline, rank).filter(|span| span.stream == stream).collect();
            assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start), "{stream:?} overlaps itself");
            let work: Picoseconds = spans
                .iter()
                .filter(|span| span.activity != Activity::Wait)
                .map(|span| span.end - span.start)
                .sum();
            assert!(timeline.duration >= work, "{stream:?} works for {work}");
        }
    }
}

/// When the kernels of each action of each replica's stage began and ended. A replica is named by its first rank.
fn kernels(timeline: &Timeline, program: &Program) -> BTreeMap<(usize, Action), (Picoseconds, Picoseconds)> {
    let mut extents = BTreeMap::new();
    for span in timeline.spans.iter().filter(|span| span.activity == Activity::Compute) {
        let Some(action) = timeline.calls[span.call as usize].action else { continue };
        let replica = program.ranks[span.rank as usize].pipeline[0];
        let (first, last) = extents.entry((replica, action)).or_insert((span.start, span.end));
        *first = span.start.min(*first);
        *last = span.end.max(*last);
    }
    extents
}

/// A microbatch goes up through the stages, and comes down again after that.
fn passes_follow_the_data(timeline: &Timeline, program: &Program, plan: &Plan) {
    let extents = kernels(timeline, program);
    let replicas = program.ranks.len() / plan.mesh.pipeline;
    assert_eq!(extents.len(), replicas * 2 * plan.stages.len() * plan.microbatches());
    for (&(replica, action), &(start, _)) in &extents {
        let Action { stage, kind, .. } = action;
        let before = match kind {
            ActionKind::Forward => stage.checked_sub(1).map(|stage| Action { stage, ..action }),
            ActionKind::Weight => Some(Action { kind: ActionKind::Input, ..action }),
            _ if stage + 1 == plan.stages.len() => Some(Action { kind: ActionKind::Forward, ..action }),
            _ => Some(Action { stage: stage + 1, ..action }),
        };
        if let Some(before) = before {
            assert!(extents[&(replica, before)].1 <= start, "{action} starts before {before} ends");
        }
    }
}

/// Nothing updates weights before the gradients of all microbatches are there and reduced; the last of them may
/// still be on their way to the stage below.
fn updates_come_last(timeline: &Timeline) {
    for rank in 0..timeline.ranks.len() {
        let of_actions = |span: &&Span| timeline.calls[span.call as usize].action.is_some();
        let gradients =
            spans_of(timeline, rank).filter(of_actions).filter(|span| span.stream != Stream::Send);
        let end = gradients.map(|span| span.end).max().unwrap();
        let update = spans_of(timeline, rank).filter(|span| !of_actions(span));
        let start = update.filter(|span| span.activity == Activity::Compute).map(|span| span.start).min();
        assert!(end <= start.unwrap(), "rank {rank} updates before {end}");
    }
}

fn memory_returns_to_what_is_resident(timeline: &Timeline, program: &Program) {
    for (index, rank) in program.ranks.iter().enumerate() {
        for kind in MemoryKind::ALL {
            let changes = timeline.memory.iter();
            let changes_of_kind =
                changes.filter(|change| change.rank as usize == index && change.kind == kind);
            let mut held = Bytes::ZERO;
            for change in changes_of_kind {
                held += change.bytes;
                // Overhead is a fraction of other sizes: sums leave less than a thousandth of a byte.
                assert!(held.get() > -1e-3, "{} of rank {index} falls to {held}", kind.name());
            }
            let resident = rank.resident.iter().filter(|held| held.kind == kind);
            let resident: Bytes = resident.map(|held| held.bytes).sum();
            assert!((held - resident).get().abs() < 1e-3, "{} of rank {index}: {held}", kind.name());
        }
    }
}

fn shares_add_up(timeline: &Timeline) {
    let report = Report::new(timeline);
    let check = |time: &TimeShares| {
        assert_eq!(time.compute + time.exposed + time.bubble, timeline.duration);
        for axis in time.communication {
            assert!(axis.overlapped + axis.exposed <= axis.total);
        }
    };
    check(&report.mean);
    report.ranks.iter().for_each(|rank| check(&rank.time));
}

/// Each message is sent once and received once, with the same size on both ends.
fn messages_arrive(program: &Program) {
    let mut sent = BTreeMap::new();
    let mut received = BTreeMap::new();
    for rank in &program.ranks {
        let replica = rank.pipeline[0];
        for call in &rank.calls {
            let microbatch = call.action.map(|action| action.microbatch);
            for op in &program.segments[call.segment].ops {
                let (messages, channel, ends, bytes) = match op.work {
                    Work::Send { channel, to, bytes } => {
                        (&mut sent, channel, (rank.pipeline_rank, to), bytes)
                    }
                    Work::Receive { channel, from, bytes } => {
                        (&mut received, channel, (from, rank.pipeline_rank), bytes)
                    }
                    _ => continue,
                };
                let known = messages.insert((replica, channel, microbatch), (ends, bytes.get()));
                assert!(known.is_none(), "{channel:?} of {microbatch:?} twice");
            }
        }
    }
    assert_eq!(sent, received);
}

/// A kernel waits for the collectives of the tensor axis before it; only the very next one may overlap them.
fn kernels_wait_for_collectives(program: &Program) {
    for segment in &program.segments {
        // Whether op j must have ended before op i starts, by its dependencies or by its stream's order.
        let mut earlier: Vec<Vec<bool>> = Vec::new();
        let mut kernels = 0;
        // How many kernels there were before each collective.
        let mut collectives: Vec<(usize, usize)> = Vec::new();
        for (index, op) in segment.ops.iter().enumerate() {
            let same_stream = (0..index).rev().find(|other| segment.ops[*other].stream == op.stream);
            let mut precedes = vec![false; segment.ops.len()];
            for &direct in op.after.iter().chain(&same_stream) {
                precedes[direct] = true;
                precedes
                    .iter_mut()
                    .zip(&earlier[direct])
                    .for_each(|(precedes, earlier)| *precedes |= earlier);
            }
            match op.stream {
                Stream::Compute => {
                    let due = collectives.iter().filter(|(_, before)| kernels > *before);
                    for (collective, _) in due {
                        assert!(
                            precedes[*collective],
                            "{}: op {index} ignores op {collective}",
                            segment.name
                        );
                    }
                    kernels += 1;
                }
                Stream::Layer => collectives.push((index, kernels)),
                _ => {}
            }
            earlier.push(precedes);
        }
    }
}

#[test]
fn every_timeline_of_random_plans_is_possible() {
    let config = ProptestConfig {
        cases: 64,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    };
    let tried = TestRunner::new(config).run(&drafts(), |draft| {
        let plan = draft.plan();
        let program = lower(&plan);
        let costs = ClusterCosts::new(&plan.cluster);
        let timeline = simulate(&program, &costs, Detail::Ops).unwrap();
        messages_arrive(&program);
        kernels_wait_for_collectives(&program);
        streams_work_no_longer_than_the_step(&timeline);
        passes_follow_the_data(&timeline, &program, &plan);
        updates_come_last(&timeline);
        memory_returns_to_what_is_resident(&timeline, &program);
        shares_add_up(&timeline);
        let joined = step_time(&program, &costs).unwrap().0 as f64 / timeline.duration.0 as f64;
        assert!((0.99..=1.01).contains(&joined), "joined ops take {joined} of the time of single ones");
        Ok(())
    });
    tried.unwrap();
}

#[test]
fn weights_arrive_before_they_are_used_and_gradients_leave_when_they_are_complete() {
    // With a bucket for each layer, the n-th gather of a step is that of the n-th layer and the n-th reduction that
    // of the n-th from the end. On a single stage the embedding is the first layer, the head the last.
    let draft = Draft {
        blocks: 4,
        stack: "megatron-core",
        data_sharding: "zero1",
        ..Draft::of("llama-7b", [2, 1, 8])
    };
    let mut plan = draft.plan();
    plan.stack.bucket_parameters.value = 1;
    let costs = ClusterCosts::new(&plan.cluster);
    let timeline = simulate(&lower(&plan), &costs, Detail::Ops).unwrap();
    let label = |span: &Span| timeline.labels[span.label as usize].as_str();
    let exchanges = |name: &str| -> Vec<&Span> {
        let moves = |span: &&Span| label(span) == name && span.activity != Activity::Wait;
        spans_of(&timeline, 0).filter(moves).collect()
    };
    // Kernels of a block in one pass, in the order of their start.
    let kernels = |block: usize, kind, microbatch| -> Vec<&Span> {
        let of_stream = |span: &&Span| {
            timeline.calls[span.call as usize].action == Some(Action { stage: 0, kind, microbatch })
                && span.stream == Stream::Compute
                && label(span).starts_with(&format!("block {block} "))
        };
        spans_of(&timeline, 0).filter(of_stream).collect()
    };
    let (gathers, reductions) = (exchanges("gather weights"), exchanges("reduce gradients"));
    assert_eq!((gathers.len(), reductions.len()), (6, 6));
    for block in 0..4 {
        let first = kernels(block, ActionKind::Forward, 0)[0];
        assert!(gathers[block + 1].end <= first.start, "block {block} begins before its weights are there");
        assert!(first.start < gathers[block + 2].end, "block {block} waits for more than its weights");
        let last = kernels(block, ActionKind::Backward, draft.microbatches - 1).pop().unwrap();
        let reduction = reductions[4 - block];
        assert!(last.end <= reduction.start, "block {block} is reduced before its gradients are complete");
    }
    // They do overlap with compute: the head's gradients are reduced during backward of the last block.
    let last = kernels(3, ActionKind::Backward, draft.microbatches - 1)[0];
    assert!(reductions[0].start <= last.start && last.start < reductions[0].end);
}
