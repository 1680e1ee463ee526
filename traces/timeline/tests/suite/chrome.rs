use crate::draft::Draft;
use serde_json::Value;
use trainwright_spec::program::{Axis, MemoryKind, Stream};
use trainwright_timeline::chrome::write_chrome;
use trainwright_timeline::timeline::{Activity, Timeline};

fn events(timeline: &Timeline) -> Vec<Value> {
    let mut file = Vec::new();
    write_chrome(timeline, &mut file).unwrap();
    let json: Value = serde_json::from_slice(&file).unwrap();
    json["traceEvents"].as_array().unwrap().clone()
}

fn text(timeline: &Timeline) -> String {
    let mut file = Vec::new();
    write_chrome(timeline, &mut file).unwrap();
    String::from_utf8(file).unwrap()
}

#[test]
fn a_small_trace_reads_as_expected() {
    let mut draft = Draft::new(&[(8, 128, 1)]);
    draft.call(0, "2B13").compute(1, 2_500_001).label("say \"hi\"\n");
    draft.span(Stream::Data, Activity::Communication(Axis::Data), 1_000_000, 3_000_000).label("all-reduce");
    draft.call(0, "").span(Stream::Receive, Activity::Wait, 0, 20).label("wait");
    // Two weeks: more digits than an `f64` holds after a division.
    draft.span(Stream::Receive, Activity::Wait, 20, 1_234_567_890_123_456_789).label("wait");
    draft.memory(0, MemoryKind::Weights, 0, 100.0).memory(0, MemoryKind::Activations, 10, 2.4);
    let expected = r#"{"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","pid":9,"name":"process_name","args":{"name":"rank 8 (stands for 128), pipeline rank 1"}},
{"ph":"M","pid":9,"name":"process_sort_index","args":{"sort_index":0}},
{"ph":"M","pid":9,"tid":1,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":9,"tid":1,"name":"thread_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":9,"tid":3,"name":"thread_name","args":{"name":"data"}},
{"ph":"M","pid":9,"tid":3,"name":"thread_sort_index","args":{"sort_index":3}},
{"ph":"M","pid":9,"tid":5,"name":"thread_name","args":{"name":"receive"}},
{"ph":"M","pid":9,"tid":5,"name":"thread_sort_index","args":{"sort_index":5}},
{"ph":"X","pid":9,"tid":1,"ts":0.000001,"dur":2.5,"name":"say \"hi\"\n","cat":"compute","args":{"action":"2B13","stage":2,"microbatch":13,"pass":"backward"}},
{"ph":"X","pid":9,"tid":3,"ts":1,"dur":2,"name":"all-reduce","cat":"communication,data","args":{"action":"2B13","stage":2,"microbatch":13,"pass":"backward"}},
{"ph":"X","pid":9,"tid":5,"ts":0,"dur":0.00002,"name":"wait","cat":"wait","args":{"pass":"update"}},
{"ph":"X","pid":9,"tid":5,"ts":0.00002,"dur":1234567890123.456769,"name":"wait","cat":"wait","args":{"pass":"update"}},
{"ph":"C","pid":9,"ts":0,"name":"memory weights","args":{"bytes":100}},
{"ph":"C","pid":9,"ts":0,"name":"memory total","args":{"bytes":100}},
{"ph":"C","pid":9,"ts":0.00001,"name":"memory activations","args":{"bytes":2}},
{"ph":"C","pid":9,"ts":0.00001,"name":"memory total","args":{"bytes":102}}
]}
"#;
    assert_eq!(text(&draft.finish()), expected);
}

#[test]
fn an_empty_trace_is_still_json() {
    assert_eq!(events(&Draft::new(&[]).finish()).len(), 0);
    assert_eq!(events(&Draft::new(&[(0, 1, 0)]).finish()).len(), 2);
}

/// Decimal microseconds as picoseconds; below 2⁵⁰ ps rounding undoes what `f64` does.
fn picoseconds(json: &Value) -> u64 {
    (json.as_f64().unwrap() * 1e6).round() as u64
}

#[test]
fn every_picosecond_and_every_span_of_a_large_trace_is_in_the_file() {
    // Spans with odd lengths, on two ranks with two streams each, up to 2 · 500 · 7919 ps ≈ 8 µs.
    let mut draft = Draft::new(&[(0, 1, 0), (1, 1, 1)]);
    for rank in 0..2 {
        for i in 0..500 {
            let start = i * 7919;
            draft.call(rank, &format!("{rank}F{i}")).compute(start, start + 7 * i + 1);
            draft.span(Stream::Send, Activity::Communication(Axis::Pipeline), start + 3, start + 4019);
            draft.memory(rank, MemoryKind::Activations, start, 1.0);
        }
    }
    let timeline = draft.finish();
    let events = events(&timeline);
    let of_phase = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();

    // For each rank: two names of the process, two of each thread; one counter for the kind and one for the total.
    assert_eq!(of_phase("M").len(), 2 * (2 + 2 * 2));
    assert_eq!(of_phase("C").len(), 2 * 500 * 2);
    let slices = of_phase("X");
    assert_eq!(slices.len(), timeline.spans.len());
    for (slice, span) in slices.iter().zip(&timeline.spans) {
        assert_eq!(slice["pid"], span.rank + 1);
        assert_eq!(picoseconds(&slice["ts"]), span.start.0);
        assert_eq!(picoseconds(&slice["dur"]), span.end.0 - span.start.0);
    }
    for pair in
        slices.windows(2).filter(|pair| pair[0]["pid"] == pair[1]["pid"] && pair[0]["tid"] == pair[1]["tid"])
    {
        assert!(picoseconds(&pair[0]["ts"]) + picoseconds(&pair[0]["dur"]) <= picoseconds(&pair[1]["ts"]));
    }
}
