use crate::draft::{Draft, ONE_F_ONE_B, from_drawing};
use trainwright_spec::program::{Axis, MemoryKind, Stream};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::report::Report;
use trainwright_timeline::timeline::{Activity, Timeline};

/// The axes that these timelines communicate over, in the order of `Axis::ALL`.
const AXES: [Axis; 4] = [Axis::Tensor, Axis::Data, Axis::Pipeline, Axis::Embedding];

/// The report of rank 0: compute, exposed, bubble, and of each axis (total, overlapped, exposed).
#[derive(Debug, PartialEq)]
struct Shares {
    compute: u64,
    exposed: u64,
    bubble: u64,
    axes: [(u64, u64, u64); AXES.len()],
}

#[track_caller]
fn check(timeline: &Timeline, expected: Shares) {
    let time = Report::new(timeline).ranks[0].time;
    let shares = Shares {
        compute: time.compute.0,
        exposed: time.exposed.0,
        bubble: time.bubble.0,
        axes: AXES.map(|axis| {
            let time = &time.communication[axis as usize];
            (time.total.0, time.overlapped.0, time.exposed.0)
        }),
    };
    assert_eq!(shares, expected);
}

const fn over(axis: Axis) -> Activity {
    Activity::Communication(axis)
}

#[test]
fn communication_beside_a_kernel_is_overlapped_and_the_rest_exposed() {
    // compute  0━━━━━━━━━10          20━━━━━━30
    // data           6━━━━━━━━━━━━━━━━━━━24          total 18, overlapped 4 + 4, exposed 10
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0B0").compute(0, 10).compute(20, 30).span(Stream::Data, over(Axis::Data), 6, 24);
    check(
        &draft.finish(),
        Shares { compute: 20, exposed: 10, bubble: 0, axes: [(0, 0, 0), (18, 8, 10), (0, 0, 0), (0, 0, 0)] },
    );
}

#[test]
fn an_instant_of_two_axes_is_exposed_on_the_first() {
    // compute  0━━━10
    // tensor              20━━━━━━━━30                total 10, exposed 10
    // data             15━━━━━━25                     total 10, exposed 15..20
    // send           5━━━━━━━━━━━━━━━━━━━━━━━━━━40    total 35, overlapped 5, exposed 10..15 and 30..40
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0B0").compute(0, 10);
    draft.span(Stream::Layer, over(Axis::Tensor), 20, 30);
    draft.span(Stream::Data, over(Axis::Data), 15, 25);
    draft.span(Stream::Send, over(Axis::Pipeline), 5, 40);
    check(
        &draft.finish(),
        Shares {
            compute: 10,
            exposed: 30,
            bubble: 0,
            axes: [(10, 0, 10), (10, 0, 5), (35, 5, 15), (0, 0, 0)],
        },
    );
}

#[test]
fn one_axis_on_two_streams_is_counted_once() {
    // send 0..10 and receive 5..20 are both the pipeline: 20 in total.
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0");
    draft.span(Stream::Send, over(Axis::Pipeline), 0, 10);
    draft.span(Stream::Receive, over(Axis::Pipeline), 5, 20);
    check(
        &draft.finish(),
        Shares { compute: 0, exposed: 20, bubble: 0, axes: [(0, 0, 0), (0, 0, 0), (20, 0, 20), (0, 0, 0)] },
    );
}

#[test]
fn waiting_and_gaps_are_the_bubble_whatever_the_stream() {
    // The compute stream waits 0..7 for a message that moves 7..10, computes 10..20, and has nothing to do 20..25;
    // then the embedding is reduced 25..30, for which the stream had waited since 22.
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0");
    draft.span(Stream::Compute, Activity::Wait, 0, 7);
    draft.span(Stream::Compute, over(Axis::Pipeline), 7, 10);
    draft.compute(10, 20).compute(20, 20);
    draft.span(Stream::Data, Activity::Wait, 22, 25);
    draft.span(Stream::Data, over(Axis::Embedding), 25, 30);
    check(
        &draft.finish(),
        Shares { compute: 10, exposed: 8, bubble: 12, axes: [(0, 0, 0), (0, 0, 0), (3, 0, 3), (5, 0, 5)] },
    );
}

#[test]
fn a_rank_without_spans_is_all_bubble() {
    let mut draft = Draft::new(&[(0, 1, 0), (1, 1, 1)]);
    draft.call(1, "1F0").compute(0, 10);
    check(&draft.finish(), Shares { compute: 0, exposed: 0, bubble: 10, axes: [(0, 0, 0); 4] });
}

#[test]
fn the_bubble_of_one_f_one_b_is_the_closed_form() {
    // (p − 1)(F + B) = 2 · 3 of the step's (m + p − 1)(F + B) = 18 units, on every rank.
    let report = Report::new(&from_drawing(ONE_F_ONE_B, 1000));
    assert_eq!(report.step_time, Picoseconds(18_000));
    for rank in &report.ranks {
        assert_eq!((rank.time.bubble, rank.time.bubble_share), (Picoseconds(6000), 1.0 / 3.0));
    }
}

#[test]
fn the_mean_counts_a_rank_as_often_as_it_stands_for_one() {
    // Rank 0 stands for 3 and computes 10 of 10; rank 3 stands for 1, computes 2 and exposes 5.
    // Mean compute (3 · 10 + 2) / 4 = 8, exposed 5 / 4 = 1.25, rounded down to 1, bubble the rest.
    let mut draft = Draft::new(&[(0, 3, 0), (3, 1, 1)]);
    draft.call(0, "0F0").compute(0, 10);
    draft.call(1, "1F0").compute(0, 2).span(Stream::Send, over(Axis::Pipeline), 5, 10);
    let report = Report::new(&draft.finish());
    let mean = (report.mean.compute.0, report.mean.exposed.0, report.mean.bubble.0);
    assert_eq!((report.rank_count, mean), (4, (8, 1, 1)));
}

#[test]
fn the_peak_of_memory_says_when_and_of_what() {
    // time         0    10    20    30    40
    // weights    100                           from the start
    // activations     +30   +30         −60    each forward keeps 30
    // buffers                    +50 −50       backward's temporaries 30..35
    // total      100  130   160  210    100
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").compute(10, 20);
    draft.call(0, "0F1").compute(20, 30);
    draft.call(0, "0B0").compute(30, 35).label("attention").compute(35, 40);
    draft.memory(0, MemoryKind::Weights, 0, 100.0);
    draft.memory(0, MemoryKind::Activations, 10, 30.0).memory(0, MemoryKind::Activations, 20, 30.0);
    draft.memory(0, MemoryKind::Buffers, 30, 50.0).memory(0, MemoryKind::Buffers, 35, -50.0);
    draft.memory(0, MemoryKind::Activations, 40, -60.0);
    let report = Report::new(&draft.finish());
    let memory = &report.ranks[0].memory;

    assert_eq!((memory.peak, memory.peak_time), (Bytes::new(210.0), Picoseconds(30)));
    assert_eq!(memory.peak_action.unwrap().to_string(), "0B0");
    assert_eq!(memory.peak_span.as_deref(), Some("attention"));
    assert_eq!(memory.in_flight_at_peak, 2);
    assert_eq!(memory.kinds.map(|kind| kind.at_peak.get()), [100.0, 0.0, 0.0, 60.0, 50.0]);
    assert_eq!(memory.kinds.map(|kind| kind.peak.get()), [100.0, 0.0, 0.0, 60.0, 50.0]);
    assert_eq!(report.peak_memory, Bytes::new(210.0));
}

#[test]
fn each_kind_has_a_separate_peak() {
    // Gradients peak at 40 while activations are gone; the total peaks before, with 90 of activations alone.
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").compute(0, 10);
    draft.memory(0, MemoryKind::Activations, 0, 90.0).memory(0, MemoryKind::Activations, 5, -90.0);
    draft.memory(0, MemoryKind::Gradients, 6, 40.0);
    let memory = Report::new(&draft.finish()).ranks[0].memory.clone();
    assert_eq!(memory.kinds.map(|kind| kind.at_peak.get()), [0.0, 0.0, 0.0, 90.0, 0.0]);
    assert_eq!(memory.kinds.map(|kind| kind.peak.get()), [0.0, 40.0, 0.0, 90.0, 0.0]);
}

#[test]
fn memory_freed_and_taken_at_the_same_time_counts_once() {
    // Taking 70 and giving back 70 at once is no peak of 140, in whichever order the changes are listed.
    for (first, second) in [(70.0, -70.0), (-70.0, 70.0)] {
        let mut draft = Draft::new(&[(0, 1, 0)]);
        draft.call(0, "0F0").compute(0, 5).compute(5, 10);
        draft.memory(0, MemoryKind::Buffers, 0, 70.0);
        draft.memory(0, MemoryKind::Buffers, 5, first).memory(0, MemoryKind::Buffers, 5, second);
        let memory = Report::new(&draft.finish()).ranks[0].memory.clone();
        assert_eq!((memory.peak, memory.peak_time), (Bytes::new(70.0), Picoseconds(0)));
    }
}

#[test]
fn the_first_rank_of_one_f_one_b_holds_a_microbatch_for_every_stage() {
    // Each forward takes 1 where it starts, each backward gives it back where it ends: p − s microbatches at most.
    let mut timeline = from_drawing(ONE_F_ONE_B, 10);
    let mut draft = Draft::new(&[]);
    for span in &timeline.spans {
        let (time, bytes) = match timeline.calls[span.call as usize].action.unwrap().to_string().contains('F')
        {
            true => (span.start, 1.0),
            false => (span.end, -1.0),
        };
        draft.memory(span.rank as usize, MemoryKind::Activations, time.0, bytes);
    }
    timeline.memory = draft.finish().memory;
    let report = Report::new(&timeline);
    let in_flight: Vec<_> =
        report.ranks.iter().map(|rank| (rank.memory.peak.get(), rank.memory.in_flight_at_peak)).collect();
    assert_eq!(in_flight, [(3.0, 3), (2.0, 2), (1.0, 1)]);
}

#[test]
fn a_backward_that_ends_at_the_peak_is_no_longer_in_flight() {
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").compute(0, 10);
    draft.call(0, "0B0").compute(10, 30);
    draft.call(0, "0F1").compute(30, 40);
    draft.memory(0, MemoryKind::Activations, 30, 1.0);
    let report = Report::new(&draft.finish());
    assert_eq!(report.ranks[0].memory.in_flight_at_peak, 1);
}

#[test]
fn json_names_every_unit() {
    let mut draft = Draft::new(&[(8, 2, 1)]);
    draft.call(0, "2F0").compute(0, 1_200_000_000).label("qkv");
    draft.span(Stream::Data, over(Axis::Data), 600_000_000, 1_500_000_000);
    draft.memory(0, MemoryKind::Weights, 0, 1024.0);
    let json = serde_json::to_value(Report::new(&draft.finish())).unwrap();
    let rank = &json["ranks"][0];
    let expected = [
        (&json["step_time_s"], "0.0015"),
        (&json["rank_count"], "2"),
        (&json["peak_memory_bytes"], "1024.0"),
        (&json["mean"]["compute_s"], "0.0012"),
        (&rank["rank"], "8"),
        (&rank["compute_s"], "0.0012"),
        (&rank["exposed_s"], "0.0003"),
        (&rank["bubble_s"], "0.0"),
        (&rank["bubble_share"], "0.0"),
        (
            &rank["communication"][0],
            r#"{"axis":"data","total_s":0.0009,"overlapped_s":0.0006,"exposed_s":0.0003}"#,
        ),
        (&rank["memory"]["peak_bytes"], "1024.0"),
        (&rank["memory"]["peak_time_s"], "0.0"),
        (&rank["memory"]["peak_action"], r#""2F0""#),
        (&rank["memory"]["peak_span"], r#""qkv""#),
        (&rank["memory"]["in_flight_at_peak"], "1"),
        (&rank["memory"]["kinds"][0], r#"{"kind":"weights","at_peak_bytes":1024.0,"peak_bytes":1024.0}"#),
    ];
    for (value, text) in expected {
        assert_eq!(value.to_string(), text);
    }
}

/// Twin: looks at every picosecond.
fn picosecond_by_picosecond(timeline: &Timeline) -> Shares {
    let mut shares = Shares { compute: 0, exposed: 0, bubble: 0, axes: [(0, 0, 0); 4] };
    for now in 0..timeline.duration.0 {
        let at_once = timeline.spans.iter().filter(|span| span.start.0 <= now && now < span.end.0);
        let active: Vec<Activity> = at_once.map(|span| span.activity).collect();
        let computing = active.contains(&Activity::Compute);
        let axes: Vec<usize> = (0..4).filter(|&i| active.contains(&over(AXES[i]))).collect();
        for &axis in &axes {
            shares.axes[axis].0 += 1;
            shares.axes[axis].1 += u64::from(computing);
        }
        match (computing, axes.first()) {
            (true, _) => shares.compute += 1,
            (false, Some(&axis)) => {
                shares.exposed += 1;
                shares.axes[axis].2 += 1;
            }
            (false, None) => shares.bubble += 1,
        }
    }
    shares
}

#[test]
fn the_sweep_agrees_with_looking_at_every_picosecond() {
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..200 {
        let mut draft = Draft::new(&[(0, 1, 0)]);
        draft.call(0, "0F0");
        for stream in Stream::ALL {
            let mut now = 0;
            for _ in 0..random(8) {
                let start = now + random(3) * random(10);
                now = start + random(12);
                let activity = match random(7) {
                    0 | 1 => Activity::Compute,
                    2 => Activity::Wait,
                    axis => over(AXES[axis as usize - 3]),
                };
                draft.span(stream, activity, start, now);
            }
        }
        let timeline = draft.finish();
        let expected = picosecond_by_picosecond(&timeline);
        assert_eq!(expected.compute + expected.exposed + expected.bubble, timeline.duration.0);
        check(&timeline, expected);
    }
}
