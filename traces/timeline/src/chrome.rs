//! Timelines as trace files that ui.perfetto.dev and chrome://tracing open.
//!
//! One process for each rank, one thread for each of its streams, one slice for each span, and counters of the
//! memory. Format: "Trace Event Format", the Chromium project's document of the JSON that chrome://tracing reads.
//! Its times are microseconds; here they have six decimals, so that every picosecond of a timeline is in the file.

use crate::actions::rows;
use crate::memory::{changes_of, levels};
use crate::sweep::spans_of;
use crate::timeline::{Activity, RankTrack, Span, Timeline};
use std::io::{self, Write};
use trainwright_spec::program::{CopyDirection, MemoryKind, Stream};
use trainwright_spec::units::Picoseconds;

/// Writes a timeline as a trace file: events by rank, spans of one thread by start.
///
/// # Errors
/// Those of the writer. It gets blocks of about 64 KiB and needs no buffer.
pub fn write_chrome(timeline: &Timeline, out: &mut impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 16, out);
    let labels: Vec<String> = timeline.labels.iter().map(|label| json_text(label)).collect();
    let args: Vec<String> = timeline.calls.iter().map(|call| call_args(call.action)).collect();

    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut separator = "\n";
    for (position, index) in rows(timeline).into_iter().enumerate() {
        let track = &timeline.ranks[index];
        out.write_all(separator.as_bytes())?;
        separator = ",\n";
        write_names(track, position, spans_of(timeline, index), &mut out)?;
        for span in spans_of(timeline, index) {
            write_span(
                span,
                process(track),
                &labels[span.label as usize],
                &args[span.call as usize],
                &mut out,
            )?;
        }
        write_memory(timeline, index, &mut out)?;
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}

/// Perfetto takes process and thread 0 for the idle task of Linux, so both count from one.
fn process(track: &RankTrack) -> usize {
    track.rank + 1
}

fn thread(stream: Stream) -> usize {
    stream as usize + 1
}

/// Names the process and its threads and puts them in order. Starts without and ends without a comma.
fn write_names(track: &RankTrack, position: usize, spans: &[Span], out: &mut impl Write) -> io::Result<()> {
    let pid = process(track);
    let RankTrack { rank, stands_for, pipeline_rank } = track;
    let others = if *stands_for > 1 { format!(" (stands for {stands_for})") } else { String::new() };
    write!(
        out,
        r#"{{"ph":"M","pid":{pid},"name":"process_name","args":{{"name":"rank {rank}{others}, pipeline rank {pipeline_rank}"}}}},
{{"ph":"M","pid":{pid},"name":"process_sort_index","args":{{"sort_index":{position}}}}}"#
    )?;
    for stream in spans.chunk_by(|a, b| a.stream == b.stream).map(|spans| spans[0].stream) {
        let (tid, name) = (thread(stream), stream.name());
        write!(
            out,
            r#",
{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_name","args":{{"name":"{name}"}}}},
{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_sort_index","args":{{"sort_index":{tid}}}}}"#
        )?;
    }
    Ok(())
}

/// `label` is a JSON string, `args` the members of an object, each followed by a comma.
fn write_span(span: &Span, pid: usize, label: &str, args: &str, out: &mut impl Write) -> io::Result<()> {
    let (group, kind) = category(span.activity);
    write!(
        out,
        ",\n{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{label},\"cat\":\"{group}{kind}\",\"args\":{{{args}\"pass\":\"{}\"}}}}",
        thread(span.stream),
        Microseconds(span.start),
        Microseconds(span.end - span.start),
        span.pass.name(),
    )
}

/// One counter for each kind of memory and one for their sum, at every instant at which they change.
fn write_memory(timeline: &Timeline, rank: usize, out: &mut impl Write) -> io::Result<()> {
    let pid = process(&timeline.ranks[rank]);
    let mut before: [Option<f64>; MemoryKind::ALL.len() + 1] = Default::default();
    for level in levels(changes_of(timeline, rank)) {
        let kinds = MemoryKind::ALL.into_iter().zip(level.held).map(|(kind, bytes)| (kind.name(), bytes));
        for ((name, bytes), before) in kinds.chain([("total", level.total())]).zip(&mut before) {
            if *before == Some(bytes.get()) || (before.is_none() && bytes.get() == 0.0) {
                continue;
            }
            *before = Some(bytes.get());
            write!(
                out,
                ",\n{{\"ph\":\"C\",\"pid\":{pid},\"ts\":{},\"name\":\"memory {name}\",\"args\":{{\"bytes\":{}}}}}",
                Microseconds(level.time),
                bytes.get(),
            )?;
        }
    }
    Ok(())
}

/// Categories are lists with commas, so that a filter for `communication` and one for `data` both work: the beginning
/// of the list and its last entry.
fn category(activity: Activity) -> (&'static str, &'static str) {
    match activity {
        Activity::Compute => ("", "compute"),
        Activity::Communication(axis) => ("communication,", axis.name()),
        Activity::Copy(CopyDirection::ToHost) => ("copy,", "to-host"),
        Activity::Copy(CopyDirection::FromHost) => ("copy,", "from-host"),
        Activity::Host => ("", "host"),
        Activity::Wait => ("", "wait"),
    }
}

fn call_args(action: Option<trainwright_spec::schedule::Action>) -> String {
    action.map_or_else(String::new, |action| {
        format!("\"action\":\"{action}\",\"stage\":{},\"microbatch\":{},", action.stage, action.microbatch)
    })
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Prints microseconds with up to six decimals, without rounding to `f64`.
struct Microseconds(Picoseconds);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (integer, mut fraction) = (self.0.0 / 1_000_000, self.0.0 % 1_000_000);
        if fraction == 0 {
            return write!(f, "{integer}");
        }
        let mut decimals = 6;
        while fraction % 10 == 0 {
            fraction /= 10;
            decimals -= 1;
        }
        write!(f, "{integer}.{fraction:0decimals$}")
    }
}
