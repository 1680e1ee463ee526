//! Records of all ranks as one timeline, with the names of the simulator's.
//!
//! A collective runs from when its last member has come, and a message from when its sender has; what is before is waiting.

use crate::train::groups::group_of;
use crate::train::record::{HeldBytes, OpRecord, Record};
use std::collections::BTreeMap;
use trainwright_spec::program::{Axis, Channel, MemoryKind, Op, Program, RankProgram, Stream, Work};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::timeline::{Activity, CallTrack, MemoryChange, RankTrack, Span, Timeline};

/// When the ops in which several ranks take part can begin.
#[derive(Default)]
struct Arrivals {
    /// By group and number in the order of its collectives.
    collectives: BTreeMap<(usize, usize), u64>,
    /// By sender, channel and microbatch.
    sends: BTreeMap<(usize, Channel, usize), u64>,
}

/// The timeline of one step; `records` are in the order of the program's ranks.
pub(crate) fn timeline(
    program: &Program,
    records: &[Record],
    resident: &[Vec<(MemoryKind, usize)>],
) -> Timeline {
    let first = records.iter().flat_map(|record| record.ops.first()).map(|op| op.start).min().unwrap_or(0);
    let last = records.iter().flat_map(|record| record.ops.last()).map(|op| op.end).max().unwrap_or(first);
    let at = |nanoseconds: u64| Picoseconds((nanoseconds.saturating_sub(first)).saturating_mul(1000));
    let arrivals = Arrivals::of(program, records);
    let mut labels = Vec::new();
    let mut first_label = Vec::new();
    for segment in &program.segments {
        first_label.push(labels.len() as u32);
        labels.extend(segment.ops.iter().map(label));
    }
    let mut timeline = Timeline { labels, duration: at(last), ..Timeline::default() };
    for (index, (rank, record)) in program.ranks.iter().zip(records).enumerate() {
        let RankProgram { rank: global, stands_for, pipeline_rank, .. } = *rank;
        timeline.ranks.push(RankTrack { rank: global, stands_for, pipeline_rank });
        let first_call = timeline.calls.len() as u32;
        timeline.calls.extend(rank.calls.iter().map(|call| CallTrack { rank: index, action: call.action }));
        let mut counted = BTreeMap::new();
        let mut spans = Vec::new();
        for op_record in &record.ops {
            let (op, begins) = arrivals.begins(program, rank, op_record, &mut counted);
            let segment = rank.calls[op_record.call as usize].segment;
            let span = Span {
                rank: index as u32,
                label: first_label[segment] + op_record.op,
                call: first_call + op_record.call,
                stream: op.stream,
                pass: op.pass,
                activity: activity(op),
                start: at(begins),
                end: at(op_record.end),
            };
            if begins > op_record.start {
                let wait =
                    Span { activity: Activity::Wait, start: at(op_record.start), end: at(begins), ..span };
                spans.push(wait);
            }
            spans.push(span);
        }
        spans.sort_by_key(|span| (Stream::ALL.iter().position(|stream| *stream == span.stream), span.start));
        timeline.spans.extend(spans);
        timeline.memory.extend(memory_changes(index as u32, record, &resident[index], at));
    }
    timeline
}

/// What a rank allocates and frees: what is resident at the start, then the changes during the step.
fn memory_changes(
    rank: u32,
    record: &Record,
    resident: &[(MemoryKind, usize)],
    at: impl Fn(u64) -> Picoseconds,
) -> Vec<MemoryChange> {
    let change = |kind, time, bytes| MemoryChange { rank, kind, time, bytes: Bytes::new(bytes) };
    let start = resident.iter().map(|(kind, bytes)| change(*kind, Picoseconds::ZERO, *bytes as f64));
    let mut changes: Vec<MemoryChange> = start.collect();
    let state = record.memory.first().map_or([0, 0], |_| resident_state(resident));
    let mut known = HeldBytes { tensors: 0, state };
    for (time, held) in &record.memory {
        let kinds = [
            (MemoryKind::Activations, held.tensors, known.tensors),
            (MemoryKind::Weights, held.state[0], known.state[0]),
            (MemoryKind::Gradients, held.state[1], known.state[1]),
        ];
        // If nothing of the state is sharded its size does not change.
        let changing = if held.state == [0, 0] { 1 } else { kinds.len() };
        for (kind, now, before) in kinds.into_iter().take(changing).filter(|(_, now, before)| now != before) {
            changes.push(change(kind, at(*time), now as f64 - before as f64));
        }
        known = *held;
    }
    changes
}

/// Weights and gradients at the start of a run.
fn resident_state(resident: &[(MemoryKind, usize)]) -> [usize; 2] {
    [MemoryKind::Weights, MemoryKind::Gradients]
        .map(|kind| resident.iter().filter(|(of, _)| *of == kind).map(|(_, bytes)| bytes).sum())
}

/// An op and how long it took on a rank from when it could begin.
pub(crate) struct TimedOp<'a> {
    pub op: &'a Op,
    /// The group of a collective.
    pub group: Option<usize>,
    pub seconds: f64,
}

/// All ops of a step.
pub(crate) fn timed_ops<'a>(program: &'a Program, records: &[Record]) -> Vec<TimedOp<'a>> {
    let arrivals = Arrivals::of(program, records);
    let mut all = Vec::new();
    for (rank, record) in program.ranks.iter().zip(records) {
        let mut counted = BTreeMap::new();
        for op_record in &record.ops {
            let (op, begins) = arrivals.begins(program, rank, op_record, &mut counted);
            let group = match op.work {
                Work::Collective { axis, .. } => group_of(rank, axis),
                _ => None,
            };
            all.push(TimedOp { op, group, seconds: (op_record.end - begins) as f64 * 1e-9 });
        }
    }
    all
}

/// What an op is called: as in a simulated timeline.
pub(crate) fn label(op: &Op) -> String {
    match op.layer {
        Some(layer) => format!("block {layer} {}", op.module),
        None => op.module.to_string(),
    }
}

fn activity(op: &Op) -> Activity {
    match op.work {
        Work::Collective { axis, .. } => Activity::Communication(axis),
        Work::Send { .. } | Work::Receive { .. } => Activity::Communication(Axis::Pipeline),
        Work::Copy { direction, .. } => Activity::Copy(direction),
        Work::HostUpdate(_) | Work::Process(_) => Activity::Host,
        Work::Compute(_) | Work::Join => Activity::Compute,
    }
}

impl Arrivals {
    fn of(program: &Program, records: &[Record]) -> Self {
        let mut arrivals = Self::default();
        for (rank, record) in program.ranks.iter().zip(records) {
            let mut counted: BTreeMap<usize, usize> = BTreeMap::new();
            for op_record in &record.ops {
                let call = &rank.calls[op_record.call as usize];
                match program.segments[call.segment].ops[op_record.op as usize].work {
                    Work::Collective { axis, .. } => {
                        let Some(group) = group_of(rank, axis) else { continue };
                        let number = counted.entry(group).or_default();
                        let start = arrivals.collectives.entry((group, *number)).or_default();
                        *start = (*start).max(op_record.start);
                        *number += 1;
                    }
                    Work::Send { channel, .. } => {
                        let microbatch = call.action.map_or(0, |action| action.microbatch);
                        arrivals.sends.insert((rank.rank, channel, microbatch), op_record.start);
                    }
                    _ => {}
                }
            }
        }
        arrivals
    }

    /// The op, and when it could begin: its start, or later if it waited for other ranks.
    fn begins<'a>(
        &self,
        program: &'a Program,
        rank: &RankProgram,
        op_record: &OpRecord,
        counted: &mut BTreeMap<usize, usize>,
    ) -> (&'a Op, u64) {
        let call = &rank.calls[op_record.call as usize];
        let op = &program.segments[call.segment].ops[op_record.op as usize];
        let begins = match op.work {
            Work::Collective { axis, .. } => group_of(rank, axis).and_then(|group| {
                let number = counted.entry(group).or_default();
                *number += 1;
                self.collectives.get(&(group, *number - 1)).copied()
            }),
            Work::Receive { channel, from, .. } => {
                let sender = program.ranks[rank.pipeline[from]].rank;
                let microbatch = call.action.map_or(0, |action| action.microbatch);
                self.sends.get(&(sender, channel, microbatch)).copied()
            }
            _ => None,
        };
        (op, begins.unwrap_or(op_record.start).clamp(op_record.start, op_record.end))
    }
}
