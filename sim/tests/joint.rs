//! Two passes that run jointly: one computes while the other's tokens are on their way to the experts.

use trainwright_sim::costs::{Conditions, Cost, Costs, Query, QueryWork};
use trainwright_sim::engine::{Load, Traffic};
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{
    Access, Allocation, Axis, Call, CollectiveCall, Group, Kernel, MemoryKind, Op, Pass, Program,
    RankProgram, Segment, Stream, Task, Work,
};
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::report::Report;

/// A second for each byte that a kernel reads or a collective moves. A collective takes some of the multiprocessors.
struct Bytewise {
    taken: f64,
}

impl Costs for Bytewise {
    fn cost(&self, query: &Query) -> Cost {
        let (bytes, load) = match query.work {
            QueryWork::Kernel(Kernel::Streaming { read, .. }) => {
                (*read, Load { multiprocessor_bound: 1.0, ..Load::default() })
            }
            QueryWork::Collective { bytes, .. } => {
                let traffic = Traffic { multiprocessors: self.taken, ..Traffic::default() };
                (bytes, Load::communication(traffic))
            }
            other => panic!("the program has no {other:?}"),
        };
        Cost { time: Seconds::new(bytes.get()), load, delivery: None }
    }

    fn device(&self, _: usize) -> usize {
        0
    }

    fn machine(&self, _: usize) -> Option<usize> {
        None
    }

    fn conditions(&self) -> Conditions<'_> {
        Conditions { by_op: false, scheduling: None, jitter: &[] }
    }
}

/// Kernels of these times with an exchange of 3 s between each two. It takes a byte at its start or gives it back at its end.
fn pass(kernels: &[f64], axis: Axis, memory: [bool; 2]) -> Segment {
    let mut ops: Vec<Op> = Vec::new();
    let op = |stream, work, after| Op {
        module: "unit",
        layer: None,
        pass: Pass::Forward,
        stream,
        work,
        task: Task::None,
        after,
        allocates: Vec::new(),
        frees: Vec::new(),
    };
    for (index, time) in kernels.iter().enumerate() {
        let waited = ops.len().checked_sub(1);
        let kernel =
            Kernel::Streaming { access: Access::Elementwise, read: Bytes::new(*time), written: Bytes::ZERO };
        ops.push(op(Stream::Compute, Work::Compute(kernel), waited.into_iter().collect()));
        if index + 1 < kernels.len() {
            let (kind, call, bytes) = (CollectiveKind::AllToAll, CollectiveCall::Single, Bytes::new(3.0));
            let after = vec![ops.len() - 1];
            ops.push(op(Stream::Layer, Work::Collective { kind, axis, bytes, call }, after));
        }
    }
    let byte = Allocation { kind: MemoryKind::Activations, bytes: Bytes::new(1.0) };
    let last = ops.len() - 1;
    ops[0].allocates.extend(memory[0].then_some(byte));
    ops[last].frees.extend(memory[1].then_some(byte));
    Segment { name: "pass".into(), ops }
}

/// A forward and a backward on one rank, of whose group for `axis` the program has no other.
fn program(kernels: [&[f64]; 2], axis: Axis, joint: bool) -> Program {
    let mut groups = [None; Axis::ALL.len()];
    groups[axis as usize] = Some(0);
    let call = |segment, joint| Call { segment, action: None, joint };
    let rank = RankProgram {
        rank: 0,
        stands_for: 2,
        pipeline_rank: 0,
        pipeline: vec![0],
        groups,
        resident: Vec::new(),
        calls: vec![call(0, joint), call(1, false)],
    };
    let segments = vec![pass(kernels[0], axis, [true, false]), pass(kernels[1], axis, [false, true])];
    let group = Group { axis, ranks: vec![0, 1], members: vec![0] };
    Program { segments, stages: Vec::new(), ranks: vec![rank], groups: vec![group] }
}

/// The step in seconds, which must not depend on the detail.
fn step(program: &Program, taken: f64) -> f64 {
    let costs = Bytewise { taken };
    let by_op = simulate(program, &costs, Detail::Ops).unwrap();
    assert_eq!(by_op.duration, step_time(program, &costs).unwrap());
    Seconds::from(by_op.duration).get()
}

/// f0, f1 of 2 s and b0, b1 of 4 s, exchanges of 3 s.
///
/// ```text
/// compute | f0 f0 b0 b0 b0 b0 f1 f1 .. b1 b1 b1 b1
/// layer   | .. .. dF dF dF .. dB dB dB .. .. .. ..
/// ```
#[test]
fn a_pass_computes_while_the_tokens_of_the_other_travel() {
    let kernels: [&[f64]; 2] = [&[2.0, 2.0], &[4.0, 4.0]];
    // One after the other: 2 + 3 + 2 and 4 + 3 + 4.
    assert_eq!(step(&program(kernels, Axis::Expert, false), 0.0), 18.0);
    assert_eq!(step(&program(kernels, Axis::Expert, true), 0.0), 13.0);
    assert_eq!(step(&program(kernels, Axis::ExpertOuter, true), 0.0), 13.0);
    // Only exchanges of tokens have a stream of their own.
    assert_eq!(step(&program(kernels, Axis::Tensor, true), 0.0), 18.0);
}

/// Exchanges take a quarter of the multiprocessors: of b0, 3 s beside dF do 2.25 s, so it ends at 6.75; f1 beside dB takes
/// 2 / 0.75 s, dB ends later, at 9.75, and b1 4 s after that.
#[test]
fn exchanges_take_multiprocessors_from_the_other_pass() {
    let kernels: [&[f64]; 2] = [&[2.0, 2.0], &[4.0, 4.0]];
    let time = step(&program(kernels, Axis::Expert, true), 0.25);
    assert!((time - 13.75).abs() < 1e-9, "{time}");
    // Alone no kernel runs beside an exchange.
    assert_eq!(step(&program(kernels, Axis::Expert, false), 0.25), 18.0);
}

/// f0 [0, 1], b0 [1, 2], f1 waits for dF [1, 4] until 4 and ends at 5; then nothing of the other pass is left. Exchanges run
/// one after the other: the second of f [5, 8], f2 [8, 9].
#[test]
fn the_longer_pass_ends_alone() {
    let kernels: [&[f64]; 2] = [&[1.0, 1.0, 1.0], &[1.0]];
    assert_eq!(step(&program(kernels, Axis::Expert, true), 0.0), 9.0);
    // The other way round: b0 has no partner from 2 on, f0 is first.
    let kernels: [&[f64]; 2] = [&[1.0], &[1.0, 1.0, 1.0]];
    assert_eq!(step(&program(kernels, Axis::Expert, true), 0.0), 10.0);
}

#[test]
fn memory_of_joint_calls_is_that_of_their_own_kernels() {
    let kernels: [&[f64]; 2] = [&[2.0, 2.0], &[4.0, 4.0]];
    for detail in [Detail::Ops, Detail::Calls] {
        let program = program(kernels, Axis::Expert, true);
        let timeline = simulate(&program, &Bytewise { taken: 0.0 }, detail).unwrap();
        let changes = timeline.memory.iter().filter(|change| change.bytes != Bytes::ZERO);
        let changes: Vec<[f64; 2]> =
            changes.map(|change| [Seconds::from(change.time).get(), change.bytes.get()]).collect();
        assert_eq!(changes, [[0.0, 1.0], [13.0, -1.0]], "{detail:?}");
        let report = Report::new(&timeline);
        // No kernel runs from 8 to 9.
        assert_eq!(Seconds::from(report.ranks[0].time.compute).get(), 12.0, "{detail:?}");
    }
}
