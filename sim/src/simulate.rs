//! Runs a program on the engine and records its timeline.

use crate::costs::Costs;
use crate::engine::{Deadlock, Graph, OpId, Outcome, Timing, UseRange};
use crate::layout::{Layout, Takes, unsteady};
use crate::template::{Detail, Inside, Node, NodeAction, Remembered, templates};
use std::collections::BTreeMap;
use trainwright_spec::program::{
    Allocation, Axis, Channel, MemoryKind, Op, Program, RankProgram, Stream, Work,
};
use trainwright_spec::units::{Bytes, Flops, Picoseconds};
use trainwright_timeline::timeline::{Activity, CallTrack, MemoryChange, RankTrack, Span, Timeline};

/// What a program does in time.
///
/// # Errors
/// `Deadlock` if its ops wait for each other.
pub fn simulate(program: &Program, costs: &impl Costs, detail: Detail) -> Result<Timeline, Deadlock> {
    let mut flat = Flat::new(program, costs, detail);
    let jitter = costs.conditions().jitter;
    if detail == Detail::Ops && !jitter.is_empty() {
        flat.graph = unsteady(&flat.graph, jitter, |op| flat.node(flat.origins[op as usize]).1.activity);
    }
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
pub(crate) struct Flat {
    pub graph: Graph,
    /// The call and the node of its template that each op of the graph is.
    pub origins: Vec<Origin>,
    pub calls: Vec<CallTrack>,
    /// The segment of each call.
    segments: Vec<u32>,
    /// By rank and segment.
    templates: Vec<Vec<Vec<Node>>>,
}

/// Kept small: there are millions.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub call: u32,
    node: u32,
}

impl Flat {
    pub fn new(program: &Program, costs: &impl Costs, detail: Detail) -> Self {
        let mut costs = Remembered::new(costs);
        let templates: Vec<Vec<Vec<Node>>> =
            program.ranks.iter().map(|rank| templates(program, rank, &mut costs, detail)).collect();
        let of_rank = |(rank, templates): (&RankProgram, &Vec<Vec<Node>>)| -> usize {
            rank.calls.iter().map(|call| templates[call.segment].len()).sum()
        };
        let ops = program.ranks.iter().zip(&templates).map(of_rank).sum();
        let ranks = program.ranks.iter().map(|rank| rank.rank);
        let layout = Layout::new(Graph::with_capacity(ops), ranks, program.groups.len(), costs.costs());
        let mut builder = Builder {
            layout,
            origins: Vec::with_capacity(ops),
            calls: Vec::new(),
            segments: Vec::new(),
            sends: BTreeMap::new(),
            receives: Vec::new(),
        };
        for (index, (rank, templates)) in program.ranks.iter().zip(&templates).enumerate() {
            builder.add_rank(program, index, rank, templates);
        }
        builder.finish(templates)
    }

    /// The segment of an op, and the node of its template.
    pub fn node(&self, origin: Origin) -> (usize, &Node) {
        let rank = self.calls[origin.call as usize].rank;
        let segment = self.segments[origin.call as usize] as usize;
        (segment, &self.templates[rank][segment][origin.node as usize])
    }

    /// Whether an op is a message that its sender has given away, which is no op of the program by itself.
    fn is_on_its_way(&self, op: OpId) -> bool {
        let stream = Stream::ALL[self.graph.queues()[op as usize] as usize % Stream::ALL.len()];
        self.node(self.origins[op as usize]).1.stream != stream
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
            let (segment, node) = self.node(origin);
            let work = &program.segments[segment].ops[node.op as usize];
            let stream = Stream::ALL[self.graph.queues()[op as usize] as usize % Stream::ALL.len()];
            if self.is_on_its_way(op) {
                continue;
            }
            let span = Span {
                rank: self.calls[origin.call as usize].rank as u32,
                label: first_label[segment] + node.op,
                call: origin.call,
                stream,
                pass: work.pass,
                activity: node.activity,
                start: outcome.started[op as usize],
                end: outcome.ended[op as usize],
            };
            let posted = outcome.posted[op as usize];
            if posted < span.start {
                spans.push(Span { activity: Activity::Wait, start: posted, end: span.start, ..span });
            }
            match node.inside {
                // The kernels first, then the communication that they do not hide: the order inside is not told.
                Some(Inside { compute, overlapped, axis }) => {
                    // What slows it is spread evenly over it.
                    let slowed = |time: Picoseconds| match node.action {
                        NodeAction::Local(alone) if alone != span.end - span.start => {
                            let slowness = (span.end - span.start).0 as f64 / alone.0 as f64;
                            Picoseconds((time.0 as f64 * slowness).round() as u64)
                        }
                        _ => time,
                    };
                    let kernels = Span { end: span.start + slowed(compute), ..span };
                    let start = kernels.end - slowed(overlapped);
                    let activity = Activity::Communication(axis);
                    spans.push(kernels);
                    spans.push(Span { stream: Stream::Layer, activity, start, ..span });
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
        let queues = self.graph.queues();
        let mut place = vec![0; queues.iter().max().map_or(0, |last| *last as usize + 1) + 1];
        for queue in queues {
            place[*queue as usize + 1] += 1;
        }
        for queue in 1..place.len() {
            place[queue] += place[queue - 1];
        }
        let mut ops = vec![0; queues.len()];
        for (op, queue) in (0..).zip(queues) {
            ops[place[*queue as usize]] = op;
            place[*queue as usize] += 1;
        }
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
                let (segment, node) = self.node(origin);
                if self.is_on_its_way(next as OpId) {
                    next += 1;
                    continue;
                }
                let op = &program.segments[segment].ops[node.op as usize];
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
            let segment = &program.segments[self.segments[call] as usize];
            let mut kernels =
                ops.clone().filter(|op| self.node(self.origins[*op]).1.activity == Activity::Compute);
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

/// Which messages: receiving rank and channel.
type Line = (usize, Channel);

struct Builder {
    layout: Layout,
    origins: Vec<Origin>,
    calls: Vec<CallTrack>,
    segments: Vec<u32>,
    /// The sends of each line by microbatch, as far as there are any.
    sends: BTreeMap<Line, Vec<Option<OpId>>>,
    /// Each with its line and microbatch.
    receives: Vec<(OpId, Line, usize)>,
}

impl Builder {
    fn add_rank(&mut self, program: &Program, index: usize, rank: &RankProgram, templates: &[Vec<Node>]) {
        let queues = Stream::ALL.map(|_| self.layout.graph.add_queue());
        let mut uses = |node: &Node| {
            let takes = match node.action {
                NodeAction::Meet(..) => Takes::Meeting,
                NodeAction::Send { to, .. } => Takes::Message(Some(rank.pipeline[to])),
                NodeAction::Local(_) | NodeAction::Receive(_) => Takes::Local,
            };
            self.layout.uses(index, node.load, takes)
        };
        let uses: Vec<Vec<UseRange>> =
            templates.iter().map(|nodes| nodes.iter().map(&mut uses).collect()).collect();
        let mut met = [0; Axis::ALL.len()];
        let mut added: Vec<OpId> = Vec::new();
        for call in &rank.calls {
            let track = self.calls.len() as u32;
            self.calls.push(CallTrack { rank: index, action: call.action });
            self.segments.push(call.segment as u32);
            let microbatch = call.action.map_or(0, |action| action.microbatch);
            added.clear();
            for (number, node) in (0..).zip(&templates[call.segment]) {
                let timing = match node.action {
                    NodeAction::Local(time) => Timing::Takes(time),
                    NodeAction::Meet(axis, time) => {
                        let group = rank.groups[axis as usize].expect("only ranks of a group meet");
                        let members = program.groups[group].members.len();
                        self.layout.meet(group, &mut met[axis as usize], members, time)
                    }
                    NodeAction::Send { takes, .. } => Timing::Takes(takes),
                    // The send may not have been added yet; `finish` sets what the receive ends with.
                    NodeAction::Receive(_) => Timing::Takes(Picoseconds::ZERO),
                };
                let graph = &mut self.layout.graph;
                let before = graph.last_of(queues[node.stream as usize]);
                let op = graph.add(queues[node.stream as usize], timing);
                graph.set_uses(op, uses[call.segment][number as usize]);
                self.origins.push(Origin { call: track, node: number });
                for earlier in &node.after {
                    graph.wait(op, added[*earlier as usize]);
                }
                added.push(op);
                match node.action {
                    NodeAction::Send { channel, to, delivery, .. } => {
                        let last = match delivery {
                            None => op,
                            Some(delivery) => {
                                self.origins.push(Origin { call: track, node: number });
                                let earlier = node.after.iter().map(|earlier| added[*earlier as usize]);
                                let ends = [index, rank.pipeline[to]];
                                let queue = queues[Stream::Send as usize];
                                self.layout.deliver(queue, ends, delivery, earlier.chain(before))
                            }
                        };
                        let line = self.sends.entry((rank.pipeline[to], channel)).or_default();
                        line.resize(line.len().max(microbatch + 1), None);
                        line[microbatch] = Some(last);
                    }
                    NodeAction::Receive(channel) => self.receives.push((op, (index, channel), microbatch)),
                    NodeAction::Local(_) | NodeAction::Meet(..) => {}
                }
            }
        }
    }

    fn finish(self, templates: Vec<Vec<Vec<Node>>>) -> Flat {
        let mut graph = self.layout.graph;
        for (receive, line, microbatch) in &self.receives {
            let sends = self.sends.get(line).and_then(|sends| sends.get(*microbatch));
            // A receive without a send ends with itself, that is never: the engine reports the deadlock.
            let send = sends.copied().flatten().unwrap_or(*receive);
            graph.set_timing(*receive, Timing::EndsWith(send));
        }
        Flat { graph, origins: self.origins, calls: self.calls, segments: self.segments, templates }
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
