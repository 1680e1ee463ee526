//! Runs a program on the engine and records its timeline.

use crate::costs::Costs;
use crate::engine::{Deadlock, Graph, OpId, Outcome, Timing};
use crate::template::{Detail, Inside, NodeAction, templates};
use std::collections::HashMap;
use trainwright_spec::program::{
    Allocation, Axis, Channel, MemoryKind, Op, Program, RankProgram, Stream, Work,
};
use trainwright_spec::units::{Bytes, Flops, Picoseconds};
use trainwright_traces::timeline::{Activity, CallTrack, MemoryChange, RankTrack, Span, Timeline};

/// What a program does in time.
///
/// # Errors
/// `Deadlock` if its ops wait for each other.
pub fn simulate(program: &Program, costs: &impl Costs, detail: Detail) -> Result<Timeline, Deadlock> {
    let flat = Flat::new(program, costs, detail);
    let outcome = flat.graph.run()?;
    Ok(flat.timeline(program, &outcome, detail))
}

/// How long a step of `program` takes, without recording what happens in it.
///
/// # Errors
/// As `simulate`.
pub fn step_time(program: &Program, costs: &impl Costs) -> Result<Picoseconds, Deadlock> {
    let outcome = Flat::new(program, costs, Detail::Calls).graph.run()?;
    Ok(outcome.ended.into_iter().max().unwrap_or(Picoseconds::ZERO))
}

/// A program as a graph, and the way back.
struct Flat {
    graph: Graph,
    /// Rank, call and op in the segment of each op of the graph.
    origins: Vec<Origin>,
    calls: Vec<CallTrack>,
}

#[derive(Clone, Copy)]
struct Origin {
    call: u32,
    segment: u32,
    op: u32,
    activity: Activity,
    inside: Option<Inside>,
}

impl Flat {
    fn new(program: &Program, costs: &impl Costs, detail: Detail) -> Self {
        let mut builder = Builder {
            flat: Flat { graph: Graph::default(), origins: Vec::new(), calls: Vec::new() },
            sends: HashMap::new(),
            receives: Vec::new(),
            meetings: HashMap::new(),
        };
        for (index, rank) in program.ranks.iter().enumerate() {
            builder.add_rank(program, index, rank, costs, detail);
        }
        builder.finish()
    }

    fn timeline(&self, program: &Program, outcome: &Outcome, detail: Detail) -> Timeline {
        let mut first_label = Vec::with_capacity(program.segments.len());
        let mut labels = Vec::new();
        for segment in &program.segments {
            first_label.push(labels.len() as u32);
            labels.extend(segment.ops.iter().map(|op| match op.layer {
                Some(layer) => format!("block {layer} {}", op.module),
                None => op.module.to_string(),
            }));
        }
        let mut spans = Vec::with_capacity(self.graph.len());
        for op in self.by_queue() {
            let origin = self.origins[op as usize];
            let work = &program.segments[origin.segment as usize].ops[origin.op as usize];
            let stream = Stream::ALL[self.graph.queues()[op as usize] as usize % Stream::ALL.len()];
            let span = Span {
                rank: self.calls[origin.call as usize].rank as u32,
                label: first_label[origin.segment as usize] + origin.op,
                call: origin.call,
                stream,
                pass: work.pass,
                activity: origin.activity,
                start: outcome.started[op as usize],
                end: outcome.ended[op as usize],
            };
            let posted = outcome.posted[op as usize];
            if posted < span.start {
                spans.push(Span { activity: Activity::Wait, start: posted, end: span.start, ..span });
            }
            match origin.inside {
                // The kernels first, then the communication that they do not hide: the order inside is not told.
                Some(Inside { compute, overlapped }) => {
                    let kernels = Span { end: span.start + compute, ..span };
                    let start = kernels.end - overlapped;
                    let activity = Activity::Communication(Axis::Tensor);
                    spans.push(kernels);
                    spans.push(Span { stream: Stream::Tensor, activity, start, ..span });
                }
                None => spans.push(span),
            }
        }
        spans.retain(|span| span.start < span.end);
        if detail == Detail::Calls {
            spans.sort_by_key(|span| (span.rank, span.stream, span.start));
        }
        Timeline {
            ranks: program
                .ranks
                .iter()
                .map(|rank| RankTrack {
                    rank: rank.rank,
                    stands_for: rank.stands_for,
                    pipeline_rank: rank.pipeline_rank,
                })
                .collect(),
            labels,
            calls: self.calls.clone(),
            spans,
            memory: match detail {
                Detail::Ops => self.memory(program, outcome),
                Detail::Calls => self.memory_by_call(program, outcome),
            },
            duration: outcome.ended.iter().copied().max().unwrap_or(Picoseconds::ZERO),
        }
    }

    /// Ops by queue, in the queue's order.
    fn by_queue(&self) -> Vec<OpId> {
        let mut ops: Vec<OpId> = (0..self.graph.len() as OpId).collect();
        ops.sort_by_key(|op| self.graph.queues()[*op as usize]);
        ops
    }

    fn memory(&self, program: &Program, outcome: &Outcome) -> Vec<MemoryChange> {
        let mut changes = Vec::new();
        let mut next = 0;
        for (index, rank) in program.ranks.iter().enumerate() {
            let first = changes.len();
            let change = |kind, time, bytes| MemoryChange { rank: index as u32, kind, time, bytes };
            changes.extend(rank.resident.iter().map(|held| change(held.kind, Picoseconds::ZERO, held.bytes)));
            while next < self.origins.len() && self.calls[self.origins[next].call as usize].rank == index {
                let origin = self.origins[next];
                let op = &program.segments[origin.segment as usize].ops[origin.op as usize];
                let (start, end) = (outcome.started[next], outcome.ended[next]);
                changes.extend(op.allocates.iter().map(|taken| change(taken.kind, start, taken.bytes)));
                changes.extend(op.frees.iter().map(|given| change(given.kind, end, given.bytes * -1.0)));
                next += 1;
            }
            // Stable: at one time, ops stay in program order, so that memory is given back before it is taken again.
            changes[first..].sort_by_key(|change| change.time);
        }
        changes
    }

    /// Memory as if each call took all its activations when it starts and gave them back when it ends.
    fn memory_by_call(&self, program: &Program, outcome: &Outcome) -> Vec<MemoryChange> {
        let mut changes: Vec<MemoryChange> = Vec::new();
        for (index, rank) in program.ranks.iter().enumerate() {
            let held = |held: &Allocation| MemoryChange {
                rank: index as u32,
                kind: held.kind,
                time: Picoseconds::ZERO,
                bytes: held.bytes,
            };
            changes.extend(rank.resident.iter().map(held));
        }
        let mut ops = 0..0;
        for (call, track) in self.calls.iter().enumerate() {
            let of_call = self.origins[ops.end..].iter().take_while(|origin| origin.call as usize == call);
            ops = ops.end..ops.end + of_call.count();
            let Some(origin) = self.origins.get(ops.start) else { continue };
            let segment = &program.segments[origin.segment as usize];
            let mut kernels = ops.clone().filter(|op| self.origins[*op].activity == Activity::Compute);
            let (Some(first), Some(last)) = (kernels.clone().next(), kernels.next_back()) else { continue };
            let total = |list: fn(&Op) -> &[Allocation]| -> Bytes {
                let all = segment.ops.iter().flat_map(list);
                all.filter(|one| one.kind == MemoryKind::Activations).map(|one| one.bytes).sum()
            };
            let kind = MemoryKind::Activations;
            let rank = track.rank as u32;
            let (taken, given) = (total(|op| &op.allocates), total(|op| &op.frees));
            changes.push(MemoryChange { rank, kind, time: outcome.started[first], bytes: taken });
            changes.push(MemoryChange { rank, kind, time: outcome.ended[last], bytes: given * -1.0 });
        }
        changes.sort_by_key(|change| (change.rank, change.time));
        changes
    }
}

/// Which message: receiving rank, channel, microbatch.
type MessageKey = (usize, Channel, usize);

struct Builder {
    flat: Flat,
    sends: HashMap<MessageKey, OpId>,
    receives: Vec<(OpId, MessageKey)>,
    /// The n-th collective of each group, by (group, n).
    meetings: HashMap<(usize, u32), u32>,
}

impl Builder {
    fn add_rank(
        &mut self,
        program: &Program,
        index: usize,
        rank: &RankProgram,
        costs: &impl Costs,
        detail: Detail,
    ) {
        let queues = Stream::ALL.map(|_| self.flat.graph.add_queue());
        let templates = templates(program, rank, costs, detail);
        let mut met = [0u32; Axis::ALL.len()];
        let mut added: Vec<OpId> = Vec::new();
        for call in &rank.calls {
            let track = self.flat.calls.len() as u32;
            self.flat.calls.push(CallTrack { rank: index, action: call.action });
            let microbatch = call.action.map_or(0, |action| action.microbatch);
            added.clear();
            for node in &templates[call.segment] {
                let timing = match node.action {
                    NodeAction::Local(time) => Timing::Takes(time),
                    NodeAction::Meet(axis, time) => {
                        let group = rank.groups[axis as usize].expect("only ranks of a group meet");
                        let turn = met[axis as usize];
                        met[axis as usize] += 1;
                        let size = program.groups[group].members.len();
                        let graph = &mut self.flat.graph;
                        let meeting =
                            *self.meetings.entry((group, turn)).or_insert_with(|| graph.add_meeting(size));
                        Timing::Meets(meeting, time)
                    }
                    NodeAction::Send(_, _, time) => Timing::Takes(time),
                    // The send may not have been added yet; `finish` sets what the receive ends with.
                    NodeAction::Receive(_) => Timing::Takes(Picoseconds::ZERO),
                };
                let op = self.flat.graph.add(queues[node.stream as usize], timing);
                self.flat.origins.push(Origin {
                    call: track,
                    segment: call.segment as u32,
                    op: node.op,
                    activity: node.activity,
                    inside: node.inside,
                });
                for earlier in &node.after {
                    self.flat.graph.wait(op, added[*earlier as usize]);
                }
                added.push(op);
                match node.action {
                    NodeAction::Send(channel, to, _) => {
                        self.sends.insert((rank.pipeline[to], channel, microbatch), op);
                    }
                    NodeAction::Receive(channel) => self.receives.push((op, (index, channel, microbatch))),
                    NodeAction::Local(_) | NodeAction::Meet(..) => {}
                }
            }
        }
    }

    fn finish(mut self) -> Flat {
        for (receive, key) in &self.receives {
            // A receive without a send ends with itself, that is never: the engine reports the deadlock.
            let send = self.sends.get(key).copied().unwrap_or(*receive);
            self.flat.graph.set_timing(*receive, Timing::EndsWith(send));
        }
        self.flat
    }
}

/// Floating-point operations of all ranks in a step: what the hardware really does, recomputation included.
pub fn hardware_flops(program: &Program) -> Flops {
    let flops = |work: &Work| if let Work::Compute(kernel) = work { kernel.flops() } else { Flops::ZERO };
    let of_segment: Vec<Flops> =
        program.segments.iter().map(|segment| segment.ops.iter().map(|op| flops(&op.work)).sum()).collect();
    let of_rank = |rank: &RankProgram| {
        let calls: Flops = rank.calls.iter().map(|call| of_segment[call.segment]).sum();
        rank.stands_for as f64 * calls
    };
    program.ranks.iter().map(of_rank).sum()
}
