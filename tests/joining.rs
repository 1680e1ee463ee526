//! Simulating by calls, with ops joined, against simulating by ops: on random programs, whatever lowering makes.

use crate::common::Draft;
use crate::undisturbed::Undisturbed;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngSeed, TestRunner};
use trainwright_lower::lower;
use trainwright_sim::costs::{ClusterCosts, Conditions, Cost, Costs, Query, QueryWork};
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{
    Access, Axis, Call, CollectiveCall, Group, Kernel, Op, Pass, Program, RankProgram, Segment, Stream, Task,
    Work,
};
use trainwright_spec::units::{Bytes, Seconds};

/// Takes as many seconds as there are bytes.
struct ByteCosts;

impl Costs for ByteCosts {
    fn cost(&self, query: &Query) -> Cost {
        let bytes = match query.work {
            QueryWork::Kernel(Kernel::Streaming { read: bytes, .. }) => *bytes,
            QueryWork::Collective { bytes, .. } | QueryWork::Message { bytes, .. } => bytes,
            other => panic!("a random program has no {other:?}"),
        };
        Cost::of_time(Seconds::new(bytes.get()))
    }

    fn device(&self, _: usize) -> usize {
        0
    }

    fn machine(&self, _: usize) -> Option<usize> {
        None
    }

    fn conditions(&self) -> Conditions<'_> {
        Conditions::default()
    }
}

/// Programs of one rank that nothing has lowered: ops on three streams that wait for any earlier ones of their call.
fn programs() -> impl Strategy<Value = Program> {
    let op = (select(vec![Stream::Compute, Stream::Layer, Stream::Data]), 0usize..5, any::<[bool; 10]>());
    let segments = prop::collection::vec(prop::collection::vec(op, 1..10), 1..4);
    let calls = prop::collection::vec(any::<Index>(), 1..6);
    (segments, calls).prop_map(|(segments, calls)| {
        let segment = |ops: &Vec<(Stream, usize, [bool; 10])>| {
            let op = |(index, (stream, time, waits)): (usize, &(Stream, usize, [bool; 10]))| {
                let bytes = Bytes::new(*time as f64);
                let collective = |axis| Work::Collective {
                    kind: CollectiveKind::AllReduce,
                    axis,
                    bytes,
                    call: CollectiveCall::Single,
                };
                Op {
                    module: "random",
                    layer: None,
                    pass: Pass::Forward,
                    stream: *stream,
                    work: match stream {
                        Stream::Layer => collective(Axis::Tensor),
                        Stream::Data => collective(Axis::Data),
                        _ => Work::Compute(Kernel::Streaming {
                            access: Access::Elementwise,
                            read: bytes,
                            written: Bytes::ZERO,
                        }),
                    },
                    task: Task::None,
                    after: (0..index).filter(|earlier| waits[*earlier]).collect(),
                    allocates: Vec::new(),
                    frees: Vec::new(),
                }
            };
            Segment { name: "random".into(), ops: ops.iter().enumerate().map(op).collect() }
        };
        let calls =
            calls.iter().map(|call| Call { segment: call.index(segments.len()), action: None, joint: false });
        let rank = RankProgram {
            rank: 0,
            stands_for: 2,
            pipeline_rank: 0,
            pipeline: vec![0],
            groups: Axis::ALL.map(|axis| match axis {
                Axis::Tensor => Some(0),
                Axis::Data => Some(1),
                _ => None,
            }),
            resident: Vec::new(),
            calls: calls.collect(),
        };
        // The other member does the same, so a collective does not wait for it.
        let group = |axis| Group { axis, ranks: vec![0, 1], members: vec![0] };
        Program {
            segments: segments.iter().map(segment).collect(),
            stages: Vec::new(),
            ranks: vec![rank],
            groups: vec![group(Axis::Tensor), group(Axis::Data)],
        }
    })
}

#[test]
fn joining_ops_changes_no_time_of_any_program() {
    let config = ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    };
    let tried = TestRunner::new(config).run(&programs(), |program| {
        let by_op = simulate(&program, &ByteCosts, Detail::Ops).unwrap().duration;
        prop_assert_eq!(step_time(&program, &ByteCosts).unwrap(), by_op);
        Ok(())
    });
    tried.unwrap();
}

/// Three plans in which gradients are reduced, or weights gathered, while joined ops run: between nodes; inside a node, where
/// the tensor axis uses the same links; both, with messages.
#[test]
fn joined_ops_are_slowed_as_much_as_single_ones() {
    let megatron = |draft| Draft { stack: "megatron-core", precision: Precision::Bf16, ..draft };
    let zero1 = "zero1";
    let drafts = [
        Draft {
            blocks: 8,
            microbatches: 2,
            sequence: 2048,
            gpus_per_node: 2,
            ..Draft::of("gpt3-6.7b", [2, 1, 4])
        },
        Draft { blocks: 8, microbatches: 2, data_sharding: zero1, ..Draft::of("gpt3-6.7b", [2, 1, 4]) },
        Draft {
            blocks: 16,
            schedule: "interleaved",
            virtual_stages: 2,
            sequence_parallel: true,
            data_sharding: zero1,
            ..Draft::of("gpt3-6.7b", [4, 2, 4])
        },
    ];
    for draft in drafts {
        let plan = megatron(draft).plan();
        let program = lower(&plan);
        let costs = ClusterCosts::new(&plan.cluster);
        let [by_op, by_call] =
            [Detail::Ops, Detail::Calls].map(|detail| simulate(&program, &costs, detail).unwrap().duration);
        let alone = simulate(&program, &Undisturbed(costs), Detail::Ops).unwrap().duration;
        let [slowed, apart] = [alone, by_call].map(|other| by_op.0 as f64 / other.0 as f64 - 1.0);
        println!(
            "{by_op}: {:+.2} % from overlapping ops, {:+.2} % from joined ops",
            100.0 * slowed,
            100.0 * apart
        );
        // There is something to get wrong.
        assert!(slowed > 0.005, "{:?}", plan.mesh);
        assert!(apart.abs() < 0.01, "{:?}: {by_op} by ops, {by_call} by calls", plan.mesh);
    }
}
