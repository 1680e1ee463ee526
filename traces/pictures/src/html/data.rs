//! The data of a timeline in a page: every action, as many spans as a browser draws easily, and the memory of each rank.
//!
//! ```json
//! { "duration", "unit_s": 1e-9, "limit_bytes", "complete_until",
//!   "labels": [ text ], "streams": [ text ], "kinds": [ text ], "colours": [ colour of a kind ],
//!   "actions": { letter: [ words, colour ] },
//!   "ranks": [ { "name",
//!                "actions": [ start, length, letter, stage, microbatch, … ],
//!                "lanes": { stream: [ start since the one before, length, label, kind, … ] },
//!                "memory": [ time, MiB, … ] } ] }
//! ```
//!
//! Times are integer nanoseconds.

use super::TimelineData;
use crate::palette::Meaning;
use serde_json::{Map, Value, json};
use trainwright_spec::program::{CopyDirection, Stream};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::actions::{extents, rows};
use trainwright_timeline::memory::{changes_of, levels};
use trainwright_timeline::sweep::spans_of;
use trainwright_timeline::timeline::{Activity, Span, Timeline};

/// The most spans of ops: some three megabytes, which every browser draws without waiting.
const MOST_SPANS: usize = 150_000;

/// The most steps of a rank's memory curve; of those that fall together the highest is kept.
const MOST_LEVELS: usize = 4_000;

/// Letters of actions, their words, and what their colours mean.
const ACTIONS: [(&str, &str, Meaning); 4] = [
    ("F", "F forward", Meaning::Forward),
    ("B", "B backward", Meaning::Backward),
    ("I", "I backward for inputs", Meaning::Backward),
    ("W", "W backward for weights", Meaning::WeightGradient),
];

/// The most ranks that are drawn.
const MOST_RANKS: usize = 64;

pub(super) fn collect(timeline: &Timeline, limit: Bytes) -> TimelineData {
    let mut rows = rows(timeline);
    let ranks = rows.len();
    rows.truncate(MOST_RANKS);
    let until = complete_until(timeline, &rows);
    let mut kinds: Vec<(String, Meaning)> = Vec::new();
    let drawn: Vec<Value> = rows.iter().map(|&rank| rank_data(timeline, rank, until, &mut kinds)).collect();
    let streams: Vec<&str> = Stream::ALL.iter().map(|stream| stream.name()).collect();
    let (names, colours): (Vec<String>, Vec<String>) =
        kinds.into_iter().map(|(name, meaning)| (name, css(meaning))).unzip();
    let actions: Map<String, Value> = ACTIONS
        .into_iter()
        .map(|(letter, words, meaning)| (letter.into(), json!([words, css(meaning)])))
        .collect();
    let json = json!({
        "duration": nanoseconds(timeline.duration),
        "limit_bytes": limit.get(),
        "complete_until": until.map(nanoseconds),
        "labels": timeline.labels,
        "streams": streams,
        "kinds": names,
        "colours": colours,
        "actions": actions,
        "ranks": drawn,
    });
    let mut note =
        "Wheel or buttons zoom, dragging moves, a double click shows all; point at a box for what it is. \
                    A rank's upper row has its actions, those below its streams."
            .to_string();
    if let Some(until) = until {
        note.push_str(&format!(" Ops are shown of the first {until}, actions of all of the step."));
    }
    if ranks > MOST_RANKS {
        note.push_str(&format!(" {MOST_RANKS} of {ranks} rows are shown."));
    }
    TimelineData { json: json.to_string(), note }
}

fn rank_data(
    timeline: &Timeline,
    rank: usize,
    until: Option<Picoseconds>,
    kinds: &mut Vec<(String, Meaning)>,
) -> Value {
    let track = &timeline.ranks[rank];
    let mut actions: Vec<u64> = Vec::new();
    let extents = extents(timeline, rank);
    for (extent, action) in extents.iter().filter_map(|extent| Some((extent, extent.action?))) {
        let (start, length) = (nanoseconds(extent.start), nanoseconds(extent.length()));
        actions.extend([
            start,
            length,
            action.kind.letter() as u64,
            action.stage as u64,
            action.microbatch as u64,
        ]);
    }
    let mut lanes = Map::new();
    let shown = |span: &&Span| span.start < span.end && until.is_none_or(|until| span.start < until);
    for stream in Stream::ALL {
        let mut lane: Vec<u64> = Vec::new();
        let mut before = 0;
        for span in spans_of(timeline, rank).iter().filter(|span| span.stream == stream).filter(shown) {
            let start = nanoseconds(span.start);
            let kind = kind(span);
            let kind = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len() - 1
            });
            lane.extend([start - before, nanoseconds(span.end) - start, span.label as u64, kind as u64]);
            before = start;
        }
        if !lane.is_empty() {
            lanes.insert(stream.name().into(), lane.into());
        }
    }
    json!({
        "name": track.name(),
        "pipeline_rank": track.pipeline_rank,
        "actions": actions,
        "lanes": lanes,
        "memory": memory(timeline, rank),
    })
}

/// Times in ns and memory in MiB, rounded, in steps.
fn memory(timeline: &Timeline, rank: usize) -> Vec<u64> {
    let bucket = timeline.duration.0 / MOST_LEVELS as u64 + 1;
    let mut steps: Vec<(u64, u64, f64)> = Vec::new();
    for level in levels(changes_of(timeline, rank)) {
        let (place, total) = (level.time.0 / bucket, level.total().get());
        match steps.last_mut() {
            Some((last, _, highest)) if *last == place => *highest = highest.max(total),
            _ => steps.push((place, nanoseconds(level.time), total)),
        }
    }
    steps.into_iter().flat_map(|(_, time, total)| [time, (total / 1_048_576.0).round() as u64]).collect()
}

/// The time before which `MOST_SPANS` spans start; `None` if all spans are shown.
fn complete_until(timeline: &Timeline, rows: &[usize]) -> Option<Picoseconds> {
    let mut starts: Vec<Picoseconds> =
        rows.iter().flat_map(|rank| spans_of(timeline, *rank)).map(|span| span.start).collect();
    if starts.len() <= MOST_SPANS {
        return None;
    }
    starts.sort_unstable();
    Some(starts[MOST_SPANS])
}

/// The kind of a span and what its colour means.
fn kind(span: &Span) -> (String, Meaning) {
    let meaning = Meaning::of(span.activity, span.pass);
    let name = match span.activity {
        Activity::Compute => meaning.name().into(),
        Activity::Communication(axis) => format!("{} communication", axis.name()),
        Activity::Copy(CopyDirection::ToHost) => "to host".into(),
        Activity::Copy(CopyDirection::FromHost) => "from host".into(),
        Activity::Host => "host".into(),
        Activity::Wait => "wait".into(),
    };
    (name, meaning)
}

/// A colour for the page's script, which knows `var(--idle)` as the page does.
fn css(meaning: Meaning) -> String {
    match meaning {
        Meaning::Wait => "var(--idle)".into(),
        other => other.colour().css(),
    }
}

fn nanoseconds(time: Picoseconds) -> u64 {
    time.0 / 1_000
}
