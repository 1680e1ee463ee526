//! A program as a graph of the engine, and the way back from the engine's times to a timeline.

use crate::costs::Costs;
use crate::engine::{Graph, Halt, OpId, Outcome, QueueId, Stop, Timing, UseRange};
use crate::index::index;
use crate::joint::turns;
use crate::layout::{Layout, Takes, jittered};
use crate::template::{Detail, Inside, Node, NodeAction, NodeId, Remembered, templates};
use std::collections::BTreeMap;
use std::sync::Arc;
use trainwright_spec::program::{
    Allocation, Axis, Call, Channel, MemoryKind, Op, Program, RankProgram, Stream,
};
use trainwright_spec::schedule::{Action, ActionKind};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::timeline::{Activity, CallTrack, MemoryChange, RankTrack, Span, Timeline};

/// The calls of each rank.
pub(crate) fn calls_of(program: &Program) -> Vec<&[Call]> {
    program.ranks.iter().map(|rank| rank.calls.as_slice()).collect()
}

index! {
    /// A call of a rank, in the order of `Timeline::calls`.
    CallId
}

index! {
    /// A segment of the program.
    pub(crate) SegmentId
}

/// A program as a graph, and the way back.
pub(crate) struct Flat {
    pub graph: Graph,
    /// The call and the node of its template that each op of the graph is.
    origins: Vec<Origin>,
    calls: Vec<CallTrack>,
    /// The segment of each call.
    segments: Vec<SegmentId>,
    templates: Arc<Templates>,
}

/// The nodes of segments, by rank and segment.
pub(crate) type Templates = Vec<Vec<Vec<Node>>>;

/// The nodes of all segments that the ranks of a program call, unless it is stopped.
pub(crate) fn all_templates(
    program: &Program,
    costs: &impl Costs,
    detail: Detail,
    stop: Stop,
) -> Result<Templates, Halt> {
    let mut costs = Remembered::new(costs);
    let of_rank = |rank| match stop() {
        true => Err(Halt::Stopped),
        false => Ok(templates(program, rank, &mut costs, detail)),
    };
    program.ranks.iter().map(of_rank).collect()
}

/// Whether there are nodes for all segments that the ranks of a program call.
pub(crate) fn has_all(templates: &Templates, program: &Program) -> bool {
    let mut ranks = program.ranks.iter().zip(templates);
    ranks.all(|(rank, nodes)| {
        let has = |call: &Call| !nodes[call.segment].is_empty();
        nodes.len() == program.segments.len() && rank.calls.iter().all(has)
    })
}

/// Kept small: there are millions.
#[derive(Clone, Copy)]
struct Origin {
    call: CallId,
    node: NodeId,
}

impl Flat {
    pub fn new(program: &Program, costs: &impl Costs, detail: Detail) -> Self {
        let laid_out = all_templates(program, costs, detail, &|| false).and_then(|templates| {
            Self::of_templates(program, &calls_of(program), Arc::new(templates), costs, &|| false)
        });
        laid_out.expect("nobody stops it")
    }

    /// The same of these calls of each rank, with the nodes of all segments that the program calls, unless it is stopped.
    pub fn of_templates(
        program: &Program,
        calls: &[&[Call]],
        templates: Arc<Templates>,
        costs: &impl Costs,
        stop: Stop,
    ) -> Result<Self, Halt> {
        let of_rank = |(calls, templates): (&&[Call], &Vec<Vec<Node>>)| -> usize {
            calls.iter().map(|call| templates[call.segment].len()).sum()
        };
        let ops = calls.iter().zip(&*templates).map(of_rank).sum();
        let ranks = program.ranks.iter().map(|rank| rank.rank);
        let layout = Layout::new(Graph::with_capacity(ops), ranks, program.groups.len(), costs);
        let mut builder = Builder {
            layout,
            origins: Vec::with_capacity(ops),
            calls: Vec::new(),
            segments: Vec::new(),
            sends: BTreeMap::new(),
            receives: Vec::new(),
        };
        for (index, (calls, templates)) in calls.iter().zip(&*templates).enumerate() {
            if stop() {
                return Err(Halt::Stopped);
            }
            builder.add_rank(program, index, calls, templates);
        }
        Ok(builder.finish(templates))
    }

    /// The same with the durations of jittered ops, where ops are simulated one by one.
    pub fn jittered(mut self, costs: &impl Costs, detail: Detail) -> Self {
        let jitter = costs.conditions().jitter;
        if detail == Detail::Ops && !jitter.is_empty() {
            self.graph = jittered(&self.graph, jitter, |op| self.node(op).1.activity);
        }
        self
    }

    /// The rank of an op, an index into `Program::ranks`.
    pub fn rank(&self, op: OpId) -> usize {
        self.calls[self.origins[op].call].rank
    }

    /// The segment of an op, and the node of its template.
    pub fn node(&self, op: OpId) -> (SegmentId, &Node) {
        let Origin { call, node } = self.origins[op];
        let segment = self.segments[call];
        (segment, &self.templates[self.rank(op)][segment][node])
    }

    /// When each rank of a program has run each microbatch forward through its first stage: by rank and microbatch.
    pub fn progress(&self, program: &Program, outcome: &Outcome) -> Vec<Vec<Picoseconds>> {
        let forward = |action: &Option<Action>| action.filter(|action| action.kind == ActionKind::Forward);
        let first = |rank: &RankProgram| {
            rank.calls.iter().filter_map(|call| forward(&call.action)).map(|it| it.stage).min()
        };
        let first: Vec<Option<usize>> = program.ranks.iter().map(first).collect();
        let mut progress = vec![Vec::new(); program.ranks.len()];
        for (op, origin) in (0..).map(OpId).zip(&self.origins) {
            let CallTrack { rank, action } = &self.calls[origin.call];
            let Some(action) = forward(action).filter(|action| Some(action.stage) == first[*rank]) else {
                continue;
            };
            let times: &mut Vec<Picoseconds> = &mut progress[*rank];
            times.resize(times.len().max(action.microbatch + 1), Picoseconds::ZERO);
            times[action.microbatch] = times[action.microbatch].max(outcome.ended[op]);
        }
        progress
    }

    /// The first op of each rank, and how many ops there are; and of each rank the first op of each of its `calls`.
    pub fn first_ops(&self, calls: &[&[Call]]) -> (Vec<usize>, Vec<Vec<usize>>) {
        let all = self.graph.len();
        let mut first_of_call = vec![all; self.calls.len()];
        for (op, origin) in self.origins.iter().enumerate().rev() {
            first_of_call[usize::from(origin.call)] = op;
        }
        // Calls without ops begin where the next one does.
        for call in (1..first_of_call.len()).rev() {
            first_of_call[call - 1] = first_of_call[call - 1].min(first_of_call[call]);
        }
        let mut rest = first_of_call.as_slice();
        let of_rank = |calls: &&[Call]| {
            let (own, others) = rest.split_at(calls.len());
            rest = others;
            own.to_vec()
        };
        let firsts: Vec<Vec<usize>> = calls.iter().map(of_rank).collect();
        let mut ops = vec![all];
        for first in firsts.iter().rev() {
            ops.push(first.first().copied().unwrap_or(ops[ops.len() - 1]));
        }
        ops.reverse();
        (ops, firsts)
    }

    /// The stream that an op runs on. Ranks have a queue for each stream, in the order of `Stream::ALL`.
    pub fn stream(&self, op: OpId) -> Stream {
        Stream::ALL[usize::from(self.graph.queues()[op]) % Stream::ALL.len()]
    }

    /// Whether an op is the delivery of a message after its send: no op of the program by itself.
    fn is_delivery(&self, op: OpId) -> bool {
        self.node(op).1.stream != self.stream(op)
    }

    pub fn timeline(&self, program: &Program, outcome: &Outcome, detail: Detail) -> Timeline {
        let label = |op: &Op| match op.layer {
            Some(layer) => format!("block {layer} {}", op.module),
            None => op.module.to_string(),
        };
        Timeline {
            ranks: tracks(program),
            labels: program.segments.iter().flat_map(|segment| &segment.ops).map(label).collect(),
            calls: self.calls.clone(),
            spans: self.spans(program, outcome, detail),
            memory: match detail {
                Detail::Ops => self.memory(program, outcome),
                Detail::Calls => self.memory_by_call(program, outcome),
            },
            duration: outcome.ended.iter().copied().max().unwrap_or(Picoseconds::ZERO),
        }
    }

    /// All spans. Labels are numbered as the ops of all segments one after the other.
    pub fn spans(&self, program: &Program, outcome: &Outcome, detail: Detail) -> Vec<Span> {
        let lengths = program.segments.iter().map(|segment| segment.ops.len() as u32);
        let first_label: Vec<u32> = lengths
            .scan(0, |next, length| {
                *next += length;
                Some(*next - length)
            })
            .collect();
        let mut spans = Vec::with_capacity(self.graph.len());
        for op in self.by_queue() {
            if self.is_delivery(op) {
                continue;
            }
            let (segment, node) = self.node(op);
            let span = Span {
                rank: self.rank(op) as u32,
                label: first_label[segment] + node.op,
                call: self.origins[op].call.0,
                stream: node.stream,
                pass: program.segments[segment].ops[node.op as usize].pass,
                activity: node.activity,
                start: outcome.started[op],
                end: outcome.ended[op],
            };
            let posted = outcome.posted[op];
            if posted < span.start {
                spans.push(Span { activity: Activity::Wait, start: posted, end: span.start, ..span });
            }
            match node.inside {
                // The kernels first, then the communication that they do not hide: the order inside is not recorded.
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
        spans
    }

    /// Ops by queue, in the queue's order.
    fn by_queue(&self) -> Vec<OpId> {
        let queues = self.graph.queues();
        let mut place = vec![0; queues.iter().max().map_or(0, |last| usize::from(*last) + 1) + 1];
        for queue in queues {
            place[usize::from(*queue) + 1] += 1;
        }
        for queue in 1..place.len() {
            place[queue] += place[queue - 1];
        }
        let mut ops = vec![OpId(0); queues.len()];
        for (op, queue) in (0..).map(OpId).zip(queues) {
            let slot: &mut usize = &mut place[*queue];
            ops[*slot] = op;
            *slot += 1;
        }
        ops
    }

    fn memory(&self, program: &Program, outcome: &Outcome) -> Vec<MemoryChange> {
        let mut changes = Vec::new();
        let mut ops = (0..self.graph.len() as u32).map(OpId).peekable();
        for (index, rank) in program.ranks.iter().enumerate() {
            let first = changes.len();
            let change = |kind, time, bytes| MemoryChange { rank: index as u32, kind, time, bytes };
            changes.extend(rank.resident.iter().map(|held| change(held.kind, Picoseconds::ZERO, held.bytes)));
            while let Some(op) = ops.next_if(|op| self.rank(*op) == index) {
                if self.is_delivery(op) {
                    continue;
                }
                let (segment, node) = self.node(op);
                let (start, end) = (outcome.started[op], outcome.ended[op]);
                let op = &program.segments[segment].ops[node.op as usize];
                changes.extend(op.allocates.iter().map(|taken| change(taken.kind, start, taken.bytes)));
                changes.extend(op.frees.iter().map(|given| change(given.kind, end, given.bytes * -1.0)));
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
        // The first and the last kernel of each call. The ops of joint calls take turns.
        let mut kernels: Vec<Option<[OpId; 2]>> = vec![None; self.calls.len()];
        for op in (0..self.graph.len() as u32).map(OpId) {
            if self.node(op).1.activity == Activity::Compute {
                let of_call = &mut kernels[usize::from(self.origins[op].call)];
                *of_call = Some([of_call.map_or(op, |[first, _]| first), op]);
            }
        }
        for ((call, track), kernels) in (0..).map(CallId).zip(&self.calls).zip(kernels) {
            let segment = &program.segments[self.segments[call]];
            let Some([first, last]) = kernels else { continue };
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

pub(crate) fn tracks(program: &Program) -> Vec<RankTrack> {
    let track = |rank: &RankProgram| RankTrack {
        rank: rank.rank,
        stands_for: rank.stands_for,
        pipeline_rank: rank.pipeline_rank,
    };
    program.ranks.iter().map(track).collect()
}

/// Receiving rank and channel of messages.
type Route = (usize, Channel);

/// A rank while its calls are laid out.
struct OnRank<'a> {
    program: &'a Program,
    /// Its index in `Program::ranks`.
    index: usize,
    rank: &'a RankProgram,
    /// By stream.
    queues: [QueueId; Stream::ALL.len()],
    /// The last op that used the layer stream without being on it.
    exchanged: Option<OpId>,
    /// How many collectives it has had on each axis.
    collectives: [usize; Axis::ALL.len()],
}

/// A call while its nodes are laid out.
struct Begun {
    call: CallId,
    microbatch: usize,
    segment: usize,
    /// The op of each node so far.
    added: Vec<OpId>,
}

struct Builder {
    layout: Layout,
    origins: Vec<Origin>,
    calls: Vec<CallTrack>,
    segments: Vec<SegmentId>,
    /// The sends of each route by microbatch; `None` where there is no send yet.
    sends: BTreeMap<Route, Vec<Option<OpId>>>,
    /// Each with its route and microbatch.
    receives: Vec<(OpId, Route, usize)>,
}

impl Builder {
    fn add_rank(&mut self, program: &Program, index: usize, calls: &[Call], templates: &[Vec<Node>]) {
        let rank = &program.ranks[index];
        let queues = Stream::ALL.map(|_| self.layout.graph.add_queue());
        let mut uses = |node: &Node| {
            let takes = match node.action {
                NodeAction::Collective(..) => Takes::Collective,
                NodeAction::Send { to, .. } => Takes::Message(Some(rank.pipeline[to])),
                NodeAction::Local(_) | NodeAction::Receive(_) => Takes::Local,
            };
            self.layout.uses(index, node.load, takes)
        };
        let uses: Vec<Vec<UseRange>> =
            templates.iter().map(|nodes| nodes.iter().map(&mut uses).collect()).collect();
        let collectives = [0; Axis::ALL.len()];
        let mut on_rank = OnRank { program, index, rank, queues, exchanged: None, collectives };
        let mut calls = calls.iter();
        while let Some(call) = calls.next() {
            let second = calls.as_slice().first().filter(|_| call.joint);
            let mut begin = |call: &Call| {
                let call_id = CallId(self.calls.len() as u32);
                self.calls.push(CallTrack { rank: index, action: call.action });
                self.segments.push(SegmentId(call.segment as u32));
                let microbatch = call.action.map_or(0, |action| action.microbatch);
                Begun { call: call_id, microbatch, segment: call.segment, added: Vec::new() }
            };
            let mut begun: Vec<Begun> = std::iter::once(call).chain(second).map(&mut begin).collect();
            let turns = match second {
                Some(second) => turns([call, second].map(|call| &templates[call.segment][..])),
                None => vec![(0, 0..templates[call.segment].len())],
            };
            for (which, nodes) in turns {
                let begun = &mut begun[which];
                for number in nodes {
                    let node = &templates[begun.segment][number];
                    let uses = uses[begun.segment][number];
                    self.add_node(&mut on_rank, begun, (NodeId(number as u32), node), uses);
                }
            }
            if second.is_some() {
                calls.next();
            }
        }
    }

    /// Appends a node of a call to its stream.
    fn add_node(
        &mut self,
        OnRank { program, index, rank, queues, exchanged, collectives }: &mut OnRank,
        Begun { call, microbatch, added, .. }: &mut Begun,
        (node_id, node): (NodeId, &Node),
        uses: UseRange,
    ) {
        let microbatch = *microbatch;
        let origin = Origin { call: *call, node: node_id };
        let timing = match node.action {
            NodeAction::Local(time) => Timing::Takes(time),
            NodeAction::Collective(axis, time) => {
                let group = rank.groups[axis as usize].expect("only members of a group communicate in it");
                let members = program.groups[group].members.len();
                self.layout.collective(group, &mut collectives[axis as usize], members, time)
            }
            NodeAction::Send { takes, .. } => Timing::Takes(takes),
            // The send may not have been added yet; `finish` sets what the receive ends with.
            NodeAction::Receive(_) => Timing::Takes(Picoseconds::ZERO),
        };
        let graph = &mut self.layout.graph;
        let before = graph.last_of(queues[node.stream as usize]);
        let op = graph.add(queues[node.stream as usize], timing);
        graph.set_uses(op, uses);
        self.origins.push(origin);
        for earlier in &node.after {
            graph.wait(op, added[usize::from(*earlier)]);
        }
        if node.holds_layer {
            graph.last_of(queues[Stream::Layer as usize]).into_iter().for_each(|last| graph.wait(op, last));
            *exchanged = Some(op);
        } else if node.stream == Stream::Layer {
            exchanged.iter().for_each(|last| graph.wait(op, *last));
        }
        added.push(op);
        match node.action {
            NodeAction::Send { channel, to, delivery, .. } => {
                let last = match delivery {
                    None => op,
                    Some(delivery) => {
                        self.origins.push(origin);
                        let earlier = node.after.iter().map(|earlier| added[usize::from(*earlier)]);
                        let ends = [*index, rank.pipeline[to]];
                        let queue = queues[Stream::Send as usize];
                        self.layout.deliver(queue, ends, delivery, earlier.chain(before))
                    }
                };
                let route = self.sends.entry((rank.pipeline[to], channel)).or_default();
                route.resize(route.len().max(microbatch + 1), None);
                route[microbatch] = Some(last);
            }
            NodeAction::Receive(channel) => self.receives.push((op, (*index, channel), microbatch)),
            NodeAction::Local(_) | NodeAction::Collective(..) => {}
        }
    }

    fn finish(self, templates: Arc<Templates>) -> Flat {
        let mut graph = self.layout.graph;
        for (receive, route, microbatch) in &self.receives {
            let sends = self.sends.get(route).and_then(|sends| sends.get(*microbatch));
            // A receive without a send ends with itself, that is never: the engine reports the deadlock.
            let send = sends.copied().flatten().unwrap_or(*receive);
            graph.set_timing(*receive, Timing::EndsWith(send));
        }
        Flat { graph, origins: self.origins, calls: self.calls, segments: self.segments, templates }
    }
}
