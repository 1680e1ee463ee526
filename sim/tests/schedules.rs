//! Bubble and memory of the pipeline schedules, measured on simulated timelines and held against closed forms.

use trainwright_sim::costs::Costs;
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{
    Access, Allocation, Axis, Call, Channel, Group, Kernel, MemoryKind, Op, Pass, Program, RankProgram,
    Segment, Stream, Work,
};
use trainwright_spec::schedule::{ActionKind, PipelineShape, Schedule, schedule};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};
use trainwright_traces::draw::{Style, draw};
use trainwright_traces::report::Report;

/// A kernel takes as many seconds as it reads bytes; messages take no time.
struct UnitCosts;

impl Costs for UnitCosts {
    fn kernel(&self, kernel: &Kernel) -> Seconds {
        match kernel {
            Kernel::Streaming { read, .. } => Seconds::new(read.get()),
            other => panic!("a unit program has no {other:?}"),
        }
    }

    fn collective(&self, _: CollectiveKind, _: Bytes, _: &Group) -> Seconds {
        Seconds::ZERO
    }

    fn message(&self, _: Bytes, _: usize, _: usize) -> Seconds {
        Seconds::ZERO
    }
}

fn op(stream: Stream, work: Work, after: Vec<usize>) -> Op {
    let (allocates, frees) = (Vec::new(), Vec::new());
    Op { module: "unit", layer: None, pass: Pass::Forward, stream, work, after, allocates, frees }
}

/// A pass of a stage: receive, one kernel, send. Forward of all a rank's stages takes 1, backward 2, and each
/// microbatch of a stage keeps 1/v byte from forward to backward.
fn unit_segment(schedule: &dyn Schedule, shape: PipelineShape, stage: usize, kind: ActionKind) -> Segment {
    let part = 1.0 / shape.virtual_stages as f64;
    let kept = vec![Allocation { kind: MemoryKind::Activations, bytes: Bytes::new(part) }];
    let rank_of = |stage| schedule.rank_of(stage, shape);
    let (below, above) = (stage.checked_sub(1), Some(stage + 1).filter(|above| *above < shape.stages()));
    let bytes = Bytes::ZERO;
    let (receive, send, time, allocates, frees) = match kind {
        ActionKind::Forward => (
            below.map(|from| Work::Receive {
                channel: Channel::Activation(from),
                from: rank_of(from),
                bytes,
            }),
            above.map(|to| Work::Send { channel: Channel::Activation(stage), to: rank_of(to), bytes }),
            part,
            kept,
            Vec::new(),
        ),
        ActionKind::Backward => (
            above.map(|from| Work::Receive { channel: Channel::Gradient(from), from: rank_of(from), bytes }),
            below.map(|to| Work::Send { channel: Channel::Gradient(stage), to: rank_of(to), bytes }),
            2.0 * part,
            Vec::new(),
            kept,
        ),
    };
    let mut ops: Vec<Op> = receive.map(|work| op(Stream::Receive, work, Vec::new())).into_iter().collect();
    let kernel =
        Kernel::Streaming { access: Access::Elementwise, read: Bytes::new(time), written: Bytes::ZERO };
    let compute = op(Stream::Compute, Work::Compute(kernel), (0..ops.len()).collect());
    ops.push(Op { allocates, frees, ..compute });
    let after = vec![ops.len() - 1];
    ops.extend(send.map(|work| op(Stream::Send, work, after)));
    Segment { name: format!("{stage} {kind:?}"), ops }
}

fn unit_program(schedule: &dyn Schedule, shape: PipelineShape) -> Program {
    let kinds = [ActionKind::Forward, ActionKind::Backward];
    let stages = 0..shape.stages();
    let segments =
        stages.flat_map(|stage| kinds.map(|kind| unit_segment(schedule, shape, stage, kind))).collect();
    let rank = |rank| RankProgram {
        rank,
        stands_for: 1,
        pipeline_rank: rank,
        pipeline: (0..shape.ranks).collect(),
        groups: [None; Axis::ALL.len()],
        resident: Vec::new(),
        calls: schedule
            .actions(rank, shape)
            .into_iter()
            .map(|action| Call {
                segment: 2 * action.stage + usize::from(action.kind == ActionKind::Backward),
                action: Some(action),
            })
            .collect(),
    };
    Program { segments, ranks: (0..shape.ranks).map(rank).collect(), groups: Vec::new() }
}

/// What a simulated timeline shows: bubble as a part of the step, and each rank's peak of kept microbatches.
fn measure(schedule: &dyn Schedule, shape: PipelineShape) -> (f64, Vec<f64>) {
    let timeline = simulate(&unit_program(schedule, shape), &UnitCosts, Detail::Ops).unwrap();
    let step = Seconds::from(timeline.duration).get();
    let bubbles: Vec<f64> = Report::new(&timeline)
        .ranks
        .iter()
        .map(|rank| Seconds::from(rank.time.bubble).get() / step)
        .collect();
    for bubble in &bubbles {
        assert!((bubble - bubbles[0]).abs() < 1e-9, "equal stages idle equally: {bubbles:?}");
    }
    let peak = |rank: u32| {
        let changes = timeline.memory.iter().filter(|change| change.rank == rank);
        let held = changes.scan(0.0, |held, change| {
            *held += change.bytes.get();
            Some(*held)
        });
        held.fold(0.0, f64::max)
    };
    (bubbles[0], (0..shape.ranks as u32).map(peak).collect())
}

fn near(value: f64, expected: f64, case: &str) {
    assert!((value - expected).abs() < 1e-6, "{case}: {value}, not {expected}");
}

#[test]
fn gpipe_and_1f1b_idle_p_minus_1_of_m_plus_p_minus_1() {
    for name in ["gpipe", "1f1b"] {
        for ranks in 1..=16 {
            for microbatches in 1..=64 {
                let shape = PipelineShape { ranks, virtual_stages: 1, microbatches };
                let (p, m) = (ranks as f64, microbatches as f64);
                let case = format!("{name} p = {ranks}, m = {microbatches}");
                let (bubble, peaks) = measure(schedule(name).unwrap(), shape);
                near(bubble, (p - 1.0) / (m + p - 1.0), &case);
                for (rank, peak) in peaks.iter().enumerate() {
                    near(*peak, if name == "gpipe" { m } else { m.min(p - rank as f64) }, &case);
                }
            }
        }
    }
}

#[test]
fn interleaving_divides_the_bubble_by_the_virtual_stages() {
    for ranks in 2..=16 {
        for virtual_stages in [2, 3, 4] {
            for groups in [1, 2, 4] {
                let shape = PipelineShape { ranks, virtual_stages, microbatches: groups * ranks };
                let (m, v) = (shape.microbatches as f64, virtual_stages as f64);
                let case = format!("{shape:?}");
                let (bubble, peaks) = measure(schedule("interleaved").unwrap(), shape);
                // A rank idles for (p − 1)/v microbatches beside its m microbatches of work.
                let idle = (ranks as f64 - 1.0) / v;
                near(bubble, idle / (m + idle), &case);
                for (rank, peak) in peaks.iter().enumerate() {
                    let all = shape.microbatches * virtual_stages;
                    let warm_up = 2 * (ranks - rank - 1) + (virtual_stages - 1) * ranks;
                    let chunks = if groups == 1 { all } else { all.min(warm_up + 1) };
                    near(*peak, chunks as f64 / v, &case);
                }
            }
        }
    }
}

#[test]
fn makespans_are_the_published_ones() {
    // F = 1, B = 2 and no communication.
    let check = |name: &str, ranks, virtual_stages, microbatches, expected: f64| {
        let shape = PipelineShape { ranks, virtual_stages, microbatches };
        let program = unit_program(schedule(name).unwrap(), shape);
        let time = step_time(&program, &UnitCosts).unwrap();
        assert_eq!(time, Picoseconds::from(Seconds::new(expected)), "{name} {shape:?}");
    };
    check("gpipe", 4, 1, 8, 33.0);
    check("1f1b", 4, 1, 8, 33.0);
    check("interleaved", 4, 2, 8, 28.5);
    check("interleaved", 4, 4, 8, 26.25);
    check("gpipe", 8, 1, 32, 117.0);
    check("1f1b", 8, 1, 32, 117.0);
    check("interleaved", 8, 2, 32, 106.5);
    check("interleaved", 8, 4, 32, 101.25);
    check("interleaved", 8, 2, 8, 34.5);
}

#[test]
fn small_schedules_look_as_they_should() {
    // F = 1, B = 2 of a rank's stages together; one cell per unit, half a unit where a rank has two stages.
    let check = |name: &str, ranks, virtual_stages, microbatches, expected: &[&str]| {
        let shape = PipelineShape { ranks, virtual_stages, microbatches };
        let program = unit_program(schedule(name).unwrap(), shape);
        let timeline = simulate(&program, &UnitCosts, Detail::Ops).unwrap();
        let unit = Picoseconds::from(Seconds::new(1.0 / virtual_stages as f64));
        assert_eq!(draw(&timeline, &Style::exact(unit)).trim_end(), expected.join("\n"), "{name}");
    };
    check(
        "gpipe",
        3,
        1,
        3,
        &[
            "rank 0 | F0 F1 F2 .. .. .. .. .. .. B0 == B1 == B2 ==",
            "rank 1 | .. F0 F1 F2 .. .. .. B0 == B1 == B2 == .. ..",
            "rank 2 | .. .. F0 F1 F2 B0 == B1 == B2 == .. .. .. ..",
        ],
    );
    check(
        "1f1b",
        3,
        1,
        4,
        &[
            "rank 0 | F0 F1 F2 .. .. .. .. B0 == F3 B1 == .. B2 == .. B3 ==",
            "rank 1 | .. F0 F1 .. .. B0 == F2 B1 == F3 B2 == .. B3 == .. ..",
            "rank 2 | .. .. F0 B0 == F1 B1 == F2 B2 == F3 B3 == .. .. .. ..",
        ],
    );
    check(
        "interleaved",
        2,
        2,
        4,
        &[
            "rank 0 | 0F0 0F1 2F0 2F1 0F2 ... 2B0 === 0F3 2B1 === 2F2 0B0 === 2F3 0B1 === ... 2B2 === ... 2B3 === 0B2 === 0B3 ===",
            "rank 1 | ... 1F0 1F1 3F0 3B0 === 3F1 3B1 === 1F2 1B0 === 1F3 1B1 === 3F2 3B2 === 3F3 3B3 === 1B2 === 1B3 === ... ...",
        ],
    );
}
