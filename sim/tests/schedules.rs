//! Bubble and memory of the pipeline schedules, measured on simulated timelines and held against closed forms.

use trainwright_sim::costs::{Conditions, Cost, Costs, Delivery, Query, QueryWork};
use trainwright_sim::engine::{Load, Scheduling};
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{
    Access, Allocation, Axis, Call, Channel, CollectiveCall, Group, Kernel, MemoryKind, Op, Pass, Program,
    RankProgram, Segment, Stream, Task, Work,
};
use trainwright_spec::schedule::ideal::{self, PassTimes, Times};
use trainwright_spec::schedule::{
    Action, ActionKind, ActionLists, PipelineShape, SCHEDULES, Schedule, schedule,
};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};
use trainwright_timeline::draw::{Style, draw};
use trainwright_timeline::report::Report;
use trainwright_timeline::timeline::{Activity, Timeline};

/// Seconds of a kernel for each byte that it reads, and of each collective and message; what ranks share.
#[derive(Default)]
struct UnitCosts<'a> {
    collective: f64,
    message: f64,
    jitter: &'a [f64],
    /// After so long a message's sender has handed it over.
    given: Option<f64>,
    /// Parts of the cores that all share which kernels and messages take; `None` if ranks share none.
    cores: Option<[f64; 2]>,
    turns: Option<Scheduling>,
}

impl Costs for UnitCosts<'_> {
    fn cost(&self, query: &Query) -> Cost {
        let [kernels, messages] = self.cores.unwrap_or_default();
        let taking = |time, cores| Cost {
            time: Seconds::new(time),
            load: Load { cores, ..Load::default() },
            delivery: None,
        };
        match query.work {
            QueryWork::Kernel(Kernel::Streaming { read, .. }) => taking(read.get(), kernels),
            QueryWork::Collective { .. } => taking(self.collective, 0.0),
            QueryWork::Message { blocking, .. } => match self.given.filter(|_| blocking) {
                None => taking(self.message, messages),
                Some(given) => {
                    let time = Seconds::new(self.message);
                    let delivery = Some(Delivery { time, cores: [messages, 0.0] });
                    Cost { delivery, ..taking(given, 0.0) }
                }
            },
            other => panic!("a unit program has no {other:?}"),
        }
    }

    fn device(&self, _: usize) -> usize {
        0
    }

    fn machine(&self, _: usize) -> Option<usize> {
        self.cores.map(|_| 0)
    }

    fn conditions(&self) -> Conditions<'_> {
        Conditions { by_op: false, scheduling: self.turns, jitter: self.jitter }
    }
}

fn op(stream: Stream, work: Work, after: Vec<usize>) -> Op {
    let (allocates, frees) = (Vec::new(), Vec::new());
    Op {
        module: "unit",
        layer: None,
        pass: Pass::Forward,
        stream,
        work,
        task: Task::None,
        after,
        allocates,
        frees,
    }
}

/// A pass of a stage: receive, one kernel, send. F, I and W of all a rank's stages take 1 each, and each microbatch of
/// a stage keeps 1/v byte from forward to the end of backward.
fn unit_segment(schedule: &dyn Schedule, shape: PipelineShape, stage: usize, kind: ActionKind) -> Segment {
    let part = 1.0 / shape.virtual_stages as f64;
    let kept = vec![Allocation { kind: MemoryKind::Activations, bytes: Bytes::new(part) }];
    let rank_of = |stage| schedule.rank_of(stage, shape);
    // Stages of one copy follow each other.
    let in_copy = stage % shape.stages();
    let below = (in_copy > 0).then(|| stage - 1);
    let above = (in_copy + 1 < shape.stages()).then_some(stage + 1);
    let bytes = Bytes::ZERO;
    let away = |other: &usize| rank_of(*other) != rank_of(stage);
    let (below, above) = (below.filter(away), above.filter(away));
    let gradient_in =
        above.map(|from| Work::Receive { channel: Channel::Gradient(from), from: rank_of(from), bytes });
    let gradient_out =
        below.map(|to| Work::Send { channel: Channel::Gradient(stage), to: rank_of(to), bytes });
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
        ActionKind::Backward => (gradient_in, gradient_out, 2.0 * part, Vec::new(), kept),
        ActionKind::Input => (gradient_in, gradient_out, part, Vec::new(), Vec::new()),
        ActionKind::Weight => (None, None, part, Vec::new(), kept),
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
    let kinds = ActionKind::ALL;
    let stages = 0..schedule.copies() * shape.stages();
    let segments =
        stages.flat_map(|stage| kinds.map(|kind| unit_segment(schedule, shape, stage, kind))).collect();
    let index = |kind| kinds.iter().position(|other| *other == kind).unwrap();
    let rank = |(rank, actions): (usize, Vec<Action>)| RankProgram {
        rank,
        stands_for: 1,
        pipeline_rank: rank,
        pipeline: (0..shape.ranks).collect(),
        groups: [None; Axis::ALL.len()],
        resident: Vec::new(),
        calls: actions
            .into_iter()
            .map(|action| Call {
                segment: kinds.len() * action.stage + index(action.kind),
                action: Some(action),
                joint: false,
            })
            .collect(),
    };
    let ranks = schedule.lists(shape).ranks.into_iter().enumerate().map(rank).collect();
    Program { segments, stages: Vec::new(), ranks, groups: Vec::new() }
}

/// The results of a simulated timeline: bubble as a part of the step, and each rank's peak of kept microbatches.
fn measure(schedule: &dyn Schedule, shape: PipelineShape) -> (f64, Vec<f64>) {
    let timeline = simulate(&unit_program(schedule, shape), &UnitCosts::default(), Detail::Ops).unwrap();
    let step = Seconds::from(timeline.duration).get();
    let bubbles: Vec<f64> = Report::new(&timeline)
        .ranks
        .iter()
        .map(|rank| Seconds::from(rank.time.bubble).get() / step)
        .collect();
    for bubble in &bubbles {
        assert!((bubble - bubbles[0]).abs() < 1e-9, "equal stages idle equally: {bubbles:?}");
    }
    (bubbles[0], (0..shape.ranks as u32).map(|rank| peak_held(&timeline, rank)).collect())
}

fn peak_held(timeline: &Timeline, rank: u32) -> f64 {
    let changes = timeline.memory.iter().filter(|change| change.rank == rank);
    let held = changes.scan(0.0, |held, change| {
        *held += change.bytes.get();
        Some(*held)
    });
    held.fold(0.0, f64::max)
}

fn assert_close(value: f64, expected: f64, case: &str) {
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
                assert_close(bubble, (p - 1.0) / (m + p - 1.0), &case);
                for (rank, peak) in peaks.iter().enumerate() {
                    assert_close(*peak, if name == "gpipe" { m } else { m.min(p - rank as f64) }, &case);
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
                // A rank idles for (p − 1)/v microbatches and works for m.
                let idle = (ranks as f64 - 1.0) / v;
                assert_close(bubble, idle / (m + idle), &case);
                for (rank, peak) in peaks.iter().enumerate() {
                    let all = shape.microbatches * virtual_stages;
                    let warm_up = 2 * (ranks - rank - 1) + (virtual_stages - 1) * ranks;
                    let chunks = if groups == 1 { all } else { all.min(warm_up + 1) };
                    assert_close(*peak, chunks as f64 / v, &case);
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
        let time = step_time(&program, &UnitCosts::default()).unwrap();
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
fn every_schedule_is_simulated_as_the_ideal_run_has_it() {
    for schedule in SCHEDULES {
        let mut tried = 0;
        for ranks in [1, 2, 3, 4, 6, 8] {
            for virtual_stages in [1, 2, 4] {
                for microbatches in [1, 2, 4, 5, 12, 16] {
                    let shape = PipelineShape { ranks, virtual_stages, microbatches };
                    if schedule.check(shape).is_err() {
                        continue;
                    }
                    tried += 1;
                    let case = format!("{} {shape:?}", schedule.name());
                    let timeline =
                        simulate(&unit_program(*schedule, shape), &UnitCosts::default(), Detail::Ops)
                            .unwrap();
                    // Programs run joint passes one after the other.
                    let lists = ActionLists::from_iter(schedule.lists(shape).ranks);
                    let run = ideal::run(&lists, &Times::equal(shape, PassTimes::unit())).unwrap();
                    assert_close(Seconds::from(timeline.duration).get(), run.makespan.get(), &case);
                    for (rank, peak) in run.peak.iter().enumerate() {
                        assert_close(peak_held(&timeline, rank as u32), peak / virtual_stages as f64, &case);
                    }
                }
            }
        }
        assert!(tried >= 5, "{}: {tried}", schedule.name());
    }
}

/// The drawings of all schedules: `TRAINWRIGHT_BLESS=1` writes what is there now.
#[test]
fn every_schedule_looks_as_in_the_golden_drawings() {
    let mut drawings = String::from(
        "F = I = W = 1 of a rank's stages together, B = I + W; one cell per unit, half a unit for two stages on a rank.\n",
    );
    for schedule in SCHEDULES {
        let shapes = [(2, 6), (1, 6), (2, 8), (1, 8)];
        let shapes = shapes.map(|(virtual_stages, microbatches)| PipelineShape {
            ranks: if microbatches == 8 { 4 } else { 3 },
            virtual_stages,
            microbatches,
        });
        let shape = shapes.into_iter().find(|shape| schedule.check(*shape).is_ok()).unwrap();
        let timeline = simulate(&unit_program(*schedule, shape), &UnitCosts::default(), Detail::Ops).unwrap();
        let unit = Picoseconds::from(Seconds::new(1.0 / shape.virtual_stages as f64));
        let PipelineShape { ranks, virtual_stages, microbatches } = shape;
        drawings.push_str(&format!(
            "\n{}, {ranks} ranks, {virtual_stages} stages on each, {microbatches} microbatches\n{}",
            schedule.name(),
            draw(&timeline, &Style::exact(unit)),
        ));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/schedules.txt");
    if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
        std::fs::write(path, &drawings).unwrap();
    }
    assert_eq!(drawings, std::fs::read_to_string(path).unwrap());
}

#[test]
fn small_schedules_look_as_they_should() {
    // F = 1, B = 2 of a rank's stages together; one cell per unit, half a unit where a rank has two stages.
    let check = |name: &str, ranks, virtual_stages, microbatches, expected: &[&str]| {
        let shape = PipelineShape { ranks, virtual_stages, microbatches };
        let program = unit_program(schedule(name).unwrap(), shape);
        let timeline = simulate(&program, &UnitCosts::default(), Detail::Ops).unwrap();
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

/// DeepSpeed's teaching example (www.deepspeed.ai/tutorials/pipeline): 8 microbatches as 2-way data parallel over
/// pipelines of 2 stages and 4 microbatches each. Gradients are reduced at the end of the step, then weights updated.
#[test]
fn data_parallel_pipelines_reduce_gradients_and_then_update() {
    let shape = PipelineShape { ranks: 2, virtual_stages: 1, microbatches: 4 };
    let mut program = unit_program(schedule("1f1b").unwrap(), shape);
    let reduce = Work::Collective {
        kind: CollectiveKind::AllReduce,
        axis: Axis::Data,
        bytes: Bytes::new(1.0),
        call: CollectiveCall::Single,
    };
    let kernel =
        Kernel::Streaming { access: Access::Elementwise, read: Bytes::new(1.0), written: Bytes::ZERO };
    let ops =
        vec![op(Stream::Compute, reduce, Vec::new()), op(Stream::Compute, Work::Compute(kernel), vec![0])];
    program.segments.push(Segment { name: "update".into(), ops });
    let update = Call { segment: program.segments.len() - 1, action: None, joint: false };
    // Rank d + 2 r is rank r of pipeline d.
    let pipeline = program.ranks.clone();
    program.ranks.clear();
    for stage in &pipeline {
        for data in 0..2 {
            let mut rank =
                RankProgram { rank: data + 2 * stage.rank, pipeline: vec![data, data + 2], ..stage.clone() };
            rank.groups[Axis::Data as usize] = Some(stage.rank);
            rank.calls.push(update);
            program.ranks.push(rank);
        }
        let ranks = vec![2 * stage.rank, 2 * stage.rank + 1];
        program.groups.push(Group { axis: Axis::Data, members: ranks.clone(), ranks });
    }
    let timeline =
        simulate(&program, &UnitCosts { collective: 1.0, ..UnitCosts::default() }, Detail::Ops).unwrap();
    assert_eq!(
        draw(&timeline, &Style::exact(Picoseconds::from(Seconds::new(1.0)))).trim_end(),
        [
            "rank 0 | F0 F1 .. .. B0 == F2 B1 == F3 B2 == .. B3 == ## ##",
            "rank 1 | F0 F1 .. .. B0 == F2 B1 == F3 B2 == .. B3 == ## ##",
            "rank 2 | .. F0 B0 == F1 B1 == F2 B2 == F3 B3 == ## ## .. ..",
            "rank 3 | .. F0 B0 == F1 B1 == F2 B2 == F3 B3 == ## ## .. ..",
        ]
        .join("\n")
    );
}

/// 64 microbatches through 2 ranks: 65 × 3 s where each forward takes 1 s and each backward 2 s.
#[test]
fn unsteady_ops_keep_their_mean_and_make_ranks_wait() {
    let shape = PipelineShape { ranks: 2, virtual_stages: 1, microbatches: 64 };
    let program = unit_program(schedule("1f1b").unwrap(), shape);
    let run =
        |jitter| simulate(&program, &UnitCosts { jitter, ..UnitCosts::default() }, Detail::Ops).unwrap();
    let without_jitter = run(&[]);
    assert_eq!(Seconds::from(without_jitter.duration), Seconds::new(195.0));
    assert_eq!(run(&[1.0]), without_jitter);
    let unsteady = run(&[0.5, 1.5]);
    assert_eq!(run(&[0.5, 1.5]), unsteady, "the same program has the same times");
    // Forward takes 0.5 or 1.5 s and backward 1 or 3 s. Of 192 s the standard deviation is √(64 (0.25 + 1)) = 9 s.
    let report = Report::new(&unsteady);
    for rank in &report.ranks {
        let busy = Seconds::from(rank.time.compute).get();
        assert!((busy - 192.0).abs() < 30.0 && busy != 192.0, "{busy}");
    }
    let slowest = report.ranks.iter().map(|rank| rank.time.compute).max().unwrap();
    assert!(unsteady.duration > slowest + Picoseconds::from(Seconds::new(3.0)), "it waits on the way");
}

#[test]
fn a_sender_that_has_given_a_message_away_goes_on() {
    let (channel, bytes) = (Channel::Activation(0), Bytes::ZERO);
    let kernel =
        Kernel::Streaming { access: Access::Elementwise, read: Bytes::new(1.0), written: Bytes::ZERO };
    let kernel = || op(Stream::Compute, Work::Compute(kernel), Vec::new());
    let send = op(Stream::Compute, Work::Send { channel, to: 1, bytes }, vec![0]);
    let receive = op(Stream::Compute, Work::Receive { channel, from: 0, bytes }, Vec::new());
    let segment = |name: &str, ops| Segment { name: name.into(), ops };
    let action = |stage| move |microbatch| Some(Action { stage, kind: ActionKind::Forward, microbatch });
    let rank = |rank: usize| RankProgram {
        rank,
        stands_for: 1,
        pipeline_rank: rank,
        pipeline: vec![0, 1],
        groups: [None; Axis::ALL.len()],
        resident: Vec::new(),
        calls: [0, 1].map(action(rank)).map(|action| Call { segment: rank, action, joint: false }).to_vec(),
    };
    let segments = vec![segment("first", vec![kernel(), send]), segment("second", vec![receive, kernel()])];
    let program = Program { segments, stages: Vec::new(), ranks: vec![rank(0), rank(1)], groups: Vec::new() };
    let check = |given: Option<f64>, cores: [f64; 2], expected: [[f64; 4]; 2]| {
        let timeline = simulate(
            &program,
            &UnitCosts { message: 10.0, given, cores: Some(cores), ..UnitCosts::default() },
            Detail::Ops,
        )
        .unwrap();
        let ends = [0, 1].map(|rank| {
            let of_rank =
                timeline.spans.iter().filter(|span| span.rank == rank && span.activity != Activity::Wait);
            of_rank.map(|span| Seconds::from(span.end).get()).collect::<Vec<f64>>()
        });
        assert_eq!(ends, expected.map(|ends| ends.to_vec()));
    };
    // The second message has to wait until the first one is through, at 11.
    check(Some(1.0), [0.0; 2], [[1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 21.0, 22.0]]);
    // A sender that waits for the end of each sends the second one from 12 on.
    check(None, [0.0; 2], [[1.0, 11.0, 12.0, 22.0], [11.0, 12.0, 22.0, 23.0]]);
    // Beside a message that takes half of the cores, a kernel that has use for all of them takes twice as long.
    check(Some(1.0), [1.0, 0.5], [[1.0, 2.0, 4.0, 5.0], [11.0, 13.0, 21.0, 22.0]]);
}

#[test]
fn messages_to_one_rank_share_its_link() {
    let line = |stage: usize| if stage == 0 { Channel::Activation(0) } else { Channel::Gradient(0) };
    let send = |stage| {
        let channel = line(stage);
        vec![op(Stream::Compute, Work::Send { channel, to: 1, bytes: Bytes::ZERO }, Vec::new())]
    };
    let receive = |from| {
        op(Stream::Compute, Work::Receive { channel: line(from), from, bytes: Bytes::ZERO }, Vec::new())
    };
    let segments =
        [send(0), vec![receive(0), receive(2)], send(2)].map(|ops| Segment { name: "segment".into(), ops });
    let rank = |rank: usize| RankProgram {
        rank,
        stands_for: 1,
        pipeline_rank: rank,
        pipeline: vec![0, 1, 2],
        groups: [None; Axis::ALL.len()],
        resident: Vec::new(),
        calls: vec![Call { segment: rank, action: None, joint: false }],
    };
    let program = Program {
        segments: segments.to_vec(),
        stages: Vec::new(),
        ranks: [0, 1, 2].map(rank).to_vec(),
        groups: Vec::new(),
    };
    let duration = |given| {
        simulate(&program, &UnitCosts { message: 10.0, given, ..UnitCosts::default() }, Detail::Ops)
            .unwrap()
            .duration
    };
    // Each would arrive after 10 s alone.
    assert_eq!(Seconds::from(duration(Some(1.0))), Seconds::new(20.0));
}

#[test]
fn ranks_that_outnumber_cores_take_turns() {
    let kernel =
        Kernel::Streaming { access: Access::Elementwise, read: Bytes::new(1.0), written: Bytes::ZERO };
    let ops = vec![op(Stream::Compute, Work::Compute(kernel), Vec::new()); 3];
    let rank = |rank: usize| RankProgram {
        rank,
        stands_for: 1,
        pipeline_rank: 0,
        pipeline: vec![rank],
        groups: [None; Axis::ALL.len()],
        resident: Vec::new(),
        calls: vec![Call { segment: 0, action: None, joint: false }],
    };
    let segments = vec![Segment { name: "segment".into(), ops }];
    let program =
        Program { segments, stages: Vec::new(), ranks: [0, 1, 2].map(rank).to_vec(), groups: Vec::new() };
    let check = |cores, expected: [[f64; 3]; 3]| {
        let seconds = |seconds| Picoseconds::from(Seconds::new(seconds));
        let turns = Some(Scheduling { cores, slice: seconds(2.0), balance: seconds(10.0) });
        let timeline = simulate(
            &program,
            &UnitCosts { cores: Some([0.5, 0.0]), turns, ..UnitCosts::default() },
            Detail::Ops,
        )
        .unwrap();
        for (rank, ends) in (0..).zip(expected) {
            let of_rank =
                timeline.spans.iter().filter(|span| span.rank == rank && span.activity == Activity::Compute);
            let found: Vec<f64> = of_rank.map(|span| Seconds::from(span.end).get()).collect();
            assert_eq!(found, ends, "{cores} cores, rank {rank}");
        }
    };
    // Ops take 1 s. The third rank waits for the first one's core, in slices of two ops.
    check(2, [[1.0, 2.0, 5.0], [1.0, 2.0, 3.0], [3.0, 4.0, 6.0]]);
    // With three cores nobody takes turns: threads that each want half of them share them all the time.
    check(3, [[1.5, 3.0, 4.5]; 3]);
}
