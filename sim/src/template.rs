//! A segment with its durations, ready to be put into the engine's graph once for each call.
//!
//! With `Detail::Ops` each op is a node. With `Detail::Calls` ops of a rank that no outside node interrupts are joined. The
//! forward of a stage whose all-reduce has one member in the program (the rank stands for its tensor group):
//!
//! ```text
//! receive | aaaa                                    op  stream   after        node  stream   after
//! compute |     nnqqqq      mmmmmm                  a   receive  -            0     receive  -
//! layer   |           rrrrrr                        n   compute  a        ┐
//! send    |                       ssss              q   compute  -        ├─► 1     compute  0
//!                                                   r   layer    q        │
//! n norm, q qkv, r all-reduce, m mlp                m   compute  r        ┘
//! a, s activations in and out                       s   send     m            2     send     1
//! ```
//!
//! Node 1 takes as long as n, q, r and m; `Inside` says that kernels run first, then the communication that they do not hide.
//! If s waited for q rather than m, the run would be cut there: node 1 would be n and q, node 2 r and m, and s would wait for 1.

use crate::costs::{Conditions, Cost, Costs, Delivery, Query, QueryWork};
use crate::engine::{Graph, Load, Mixture, OpId, Timing, Use};
use crate::index::index;
use serde::Serialize;
use std::ops::Range;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{
    Axis, Call, Channel, CollectiveCall, Kernel, Op, Pass, Program, RankProgram, Segment, Stream, Work,
};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::timeline::Activity;

/// How finely a simulation looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detail {
    /// Every op is an event: for reports and traces.
    Ops,
    /// Ops that only wait for each other are one event: the same times for a fraction of the work. Spans distinguish
    /// compute from communication but not single ops, and memory changes with calls, without temporaries. For ranking many
    /// plans, and for steps of millions of ops.
    Calls,
}

index! {
    /// A node of a template.
    pub(crate) NodeId
}

/// An op, or several in one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// Where it runs.
    pub stream: Stream,
    /// Its action.
    pub action: NodeAction,
    /// Its load of its rank's GPU.
    pub load: Load,
    /// Earlier nodes of the template that it waits for.
    pub after: Vec<NodeId>,
    /// Index in the segment of the op it is, or of the first it stands for.
    pub op: u32,
    /// Its activity, if it is one op.
    pub activity: Activity,
    /// The time of its parts, if it is several ops.
    pub inside: Option<Inside>,
    /// √(Σ t²) / Σ t of the ops in it: 1 for one op, less the more evenly its time is spread over many.
    pub evenness: f32,
}

/// How several ops in one spend their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inside {
    /// While a kernel runs.
    pub compute: Picoseconds,
    /// The part of it during which an axis inside the layer communicates too. One does also in the time without kernels.
    pub overlapped: Picoseconds,
    /// The first of those axes.
    pub axis: Axis,
}

/// The action of a node, with its duration on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NodeAction {
    /// Runs by itself.
    Local(Picoseconds),
    /// A collective with the other members of the rank's group on an axis.
    Collective(Axis, Picoseconds),
    /// Sends to a pipeline rank.
    Send {
        channel: Channel,
        to: usize,
        /// The time of the sender.
        takes: Picoseconds,
        /// How the message goes on when its sender is done with it; `None` if it has arrived by then.
        delivery: Option<Delivery>,
    },
    /// Receives from a pipeline rank.
    Receive(Channel),
}

/// Costs with a cache of kernels and collectives: a program has few distinct ones, each thousands of times.
pub(crate) struct Remembered<'a, C> {
    costs: &'a C,
    by_op: bool,
    /// By op (where costs depend on it) and device.
    kernels: Vec<(Kernel, OpName, usize, Cost)>,
    collectives: Vec<(KnownCollective, Cost)>,
    runs: Vec<SlowedRun>,
}

/// Module and pass of an op; `None` where costs do not depend on them.
type OpName = Option<(&'static str, Pass)>;

/// A collective: its op, its group's index, its kind, its call and its size.
type KnownCollective = (OpName, usize, CollectiveKind, CollectiveCall, Bytes);

/// A run of a segment whose two streams slow each other, and when each of its nodes starts and ends. Most stages of a
/// pipeline have the same.
struct SlowedRun {
    first: usize,
    nodes: Vec<Node>,
    windows: Vec<Range<Picoseconds>>,
}

impl<'a, C: Costs> Remembered<'a, C> {
    /// Costs that know no kernel yet.
    pub fn new(costs: &'a C) -> Self {
        let Conditions { by_op, .. } = costs.conditions();
        Self { costs, by_op, kernels: Vec::new(), collectives: Vec::new(), runs: Vec::new() }
    }

    /// The cost of an op of a rank that runs on a kind of device.
    fn cost(&mut self, program: &Program, rank: &RankProgram, device: usize, op: &Op) -> Cost {
        let Some(query) = Query::of(program, rank, op) else { return Cost::default() };
        let name = self.by_op.then_some((op.module, op.pass));
        match (query.work, &op.work) {
            (QueryWork::Kernel(kernel), _) => {
                let of = |known: &&(Kernel, OpName, usize, Cost)| {
                    known.0 == *kernel && (known.1, known.2) == (name, device)
                };
                if let Some((.., cost)) = self.kernels.iter().find(of) {
                    return *cost;
                }
                let cost = self.costs.cost(&query);
                self.kernels.push((*kernel, name, device, cost));
                cost
            }
            (QueryWork::Collective { kind, bytes, call, .. }, Work::Collective { axis, .. }) => {
                let group = rank.groups[*axis as usize].expect("a query's collective has a group");
                let key = (name, group, kind, call, bytes);
                // The last first: ranks come one after the other, each with separate groups.
                if let Some((_, cost)) = self.collectives.iter().rev().find(|(known, _)| *known == key) {
                    return *cost;
                }
                let cost = self.costs.cost(&query);
                self.collectives.push((key, cost));
                cost
            }
            _ => self.costs.cost(&query),
        }
    }
}

/// The nodes of every segment that `rank` calls, by segment.
pub(crate) fn templates<C: Costs>(
    program: &Program,
    rank: &RankProgram,
    costs: &mut Remembered<C>,
    detail: Detail,
) -> Vec<Vec<Node>> {
    let mut all = vec![Vec::new(); program.segments.len()];
    for call in &rank.calls {
        if all[call.segment].is_empty() {
            all[call.segment] = nodes(program, rank, &program.segments[call.segment], costs);
        }
    }
    match detail {
        Detail::Ops => all,
        Detail::Calls if any_take_turns(&rank.calls, &all) => all,
        // A collective of a segment that cannot be joined may have to wait for one of the call before, which would
        // be hidden in a joined one: all are joined or none.
        Detail::Calls => {
            all.iter().map(|nodes| coalesce(nodes, &mut costs.runs)).collect::<Option<_>>().unwrap_or(all)
        }
    }
}

/// Whether any joint calls of a rank take turns, of which `templates` has the nodes by segment. If not, they run one after
/// the other.
fn any_take_turns(calls: &[Call], templates: &[Vec<Node>]) -> bool {
    let is_cut = |call: &Call| runs_between_exchanges(&templates[call.segment]).len() > 1;
    calls.windows(2).any(|pair| pair[0].joint && pair.iter().any(is_cut))
}

/// The nodes of a call, cut before each kernel that waits for an exchange of tokens between experts.
pub(crate) fn runs_between_exchanges(nodes: &[Node]) -> Vec<Range<usize>> {
    let waits = |node: &Node| node.after.iter().any(|earlier| nodes[*earlier].exchanges_tokens());
    let cuts = nodes.iter().enumerate().filter(|(_, node)| node.stream == Stream::Compute && waits(node));
    let mut ends: Vec<usize> = cuts.map(|(index, _)| index).collect();
    ends.push(nodes.len());
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

impl Node {
    fn exchanges_tokens(&self) -> bool {
        let over_experts = matches!(self.activity, Activity::Communication(axis) if axis.is_of_experts());
        self.stream == Stream::Layer && over_experts
    }
}

fn nodes<C: Costs>(
    program: &Program,
    rank: &RankProgram,
    segment: &Segment,
    costs: &mut Remembered<C>,
) -> Vec<Node> {
    let device = costs.costs.device(rank.rank);
    let node = |(index, op): (u32, &Op)| {
        let cost = costs.cost(program, rank, device, op);
        Node {
            stream: op.stream,
            action: action(program, rank, op, &cost),
            load: cost.load,
            after: op.after.iter().map(|earlier| NodeId(*earlier as u32)).collect(),
            op: index,
            activity: activity(&op.work),
            inside: None,
            evenness: 1.0,
        }
    };
    (0u32..).zip(&segment.ops).map(node).collect()
}

fn action(program: &Program, rank: &RankProgram, op: &Op, cost: &Cost) -> NodeAction {
    let time = cost.time.into();
    match op.work {
        Work::Collective { axis, .. } => match rank.groups[axis as usize] {
            Some(group) if program.groups[group].members.len() > 1 => NodeAction::Collective(axis, time),
            _ => NodeAction::Local(time),
        },
        Work::Send { channel, to, .. } => {
            NodeAction::Send { channel, to, takes: time, delivery: cost.delivery }
        }
        // The send says what the message takes on both sides.
        Work::Receive { channel, .. } => NodeAction::Receive(channel),
        Work::Compute(_) | Work::Copy { .. } | Work::HostUpdate(_) | Work::Process(_) | Work::Join => {
            NodeAction::Local(time)
        }
    }
}

/// Joins runs of local nodes on the compute and layer streams into one node between the points where an outside node
/// waits for them or they wait for one.
///
/// Inside a run every start is fixed relative to the run's, because no outside node delays it; what slows a joined
/// node slows all that is in it evenly. That holds if the run begins with a kernel, all its collectives wait for something
/// in it, and both streams are idle when it begins: `None` if a run has a collective that could start before it, or leaves
/// the layer stream busy after its last kernel.
fn coalesce(nodes: &[Node], slowed_runs: &mut Vec<SlowedRun>) -> Option<Vec<Node>> {
    let mut watched = vec![false; nodes.len()];
    for node in nodes.iter().filter(|node| !is_local(node)) {
        node.after.iter().for_each(|earlier| watched[*earlier] = true);
    }
    let mut joined: Vec<Node> = Vec::new();
    // The joined node that ends with each watched node, and the copy of each outside one.
    let mut place = vec![NodeId(0); nodes.len()];
    let mut first = 0;
    while first < nodes.len() {
        let waits_outside = |node: &Node| node.after.iter().any(|earlier| !is_local(&nodes[*earlier]));
        if !is_local(&nodes[first]) {
            keep(nodes, first, &mut place, &mut joined);
            first += 1;
            continue;
        }
        if nodes[first].stream != Stream::Compute {
            return None;
        }
        let breaks_run = |node: &Node| match is_local(node) {
            true => waits_outside(node),
            false => node.stream == Stream::Compute,
        };
        let length = nodes[first + 1..].iter().take_while(|node| !breaks_run(node)).count();
        let run = first..first + 1 + length;
        let windows = local_windows(nodes, run.clone(), slowed_runs)?;
        let spent = |window| {
            inside(nodes[run.clone()].iter().zip(&windows).filter(|(node, _)| is_local(node)), window)
        };
        let total = windows.iter().map(|window| window.end).max().unwrap_or(Picoseconds::ZERO);
        let mut cuts: Vec<(Picoseconds, usize)> = run
            .clone()
            .filter(|index| is_local(&nodes[*index]) && watched[*index])
            .map(|index| (windows[index - first].end, index))
            .collect();
        cuts.push((total, run.end));
        cuts.sort_unstable();
        let outside = nodes[first].after.iter().filter(|earlier| !is_local(&nodes[**earlier]));
        let mut after: Vec<NodeId> = outside.map(|earlier| place[*earlier]).collect();
        let mut from = Picoseconds::ZERO;
        for (time, index) in cuts {
            if index < run.end {
                place[index] = NodeId(joined.len() as u32);
            }
            let (inside, load, evenness) = spent(from..time);
            joined.push(Node {
                stream: Stream::Compute,
                action: NodeAction::Local(time - from),
                load,
                after: std::mem::take(&mut after),
                op: first as u32,
                activity: Activity::Compute,
                inside: Some(inside),
                evenness,
            });
            from = time;
        }
        for index in run.clone().filter(|index| !is_local(&nodes[*index])) {
            keep(nodes, index, &mut place, &mut joined);
        }
        first = run.end;
    }
    Some(joined)
}

/// Whether a node can be joined with others.
fn is_local(node: &Node) -> bool {
    let is_inside = match node.stream {
        Stream::Compute => node.activity == Activity::Compute,
        stream => stream == Stream::Layer,
    };
    matches!(node.action, NodeAction::Local(_)) && is_inside
}

/// Takes an outside node over as it is.
fn keep(nodes: &[Node], index: usize, place: &mut [NodeId], joined: &mut Vec<Node>) {
    let after = nodes[index].after.iter().map(|earlier| place[*earlier]).collect();
    place[index] = NodeId(joined.len() as u32);
    joined.push(Node { after, ..nodes[index].clone() });
}

/// How the local nodes of a run, each with the window in which it runs, spend `window` of the run's time; their load of the
/// GPU, and their evenness. While no kernel runs, a collective does: what else would the kernels wait for?
fn inside<'a>(
    nodes: impl Iterator<Item = (&'a Node, &'a Range<Picoseconds>)>,
    window: Range<Picoseconds>,
) -> (Inside, Load, f32) {
    let (mut sum, mut squares) = (0.0, 0.0);
    let (mut compute, mut communication) = (Picoseconds::ZERO, Picoseconds::ZERO);
    let mut axis = None;
    let mut mixture = Mixture::default();
    for (node, ran) in nodes {
        let (start, end) = (ran.start.max(window.start), ran.end.min(window.end));
        if start < end {
            let length = (end - start).0 as f64;
            sum += length;
            squares += length * length;
            match node.activity {
                Activity::Compute => compute += end - start,
                Activity::Communication(over) => {
                    communication += end - start;
                    axis = axis.or(Some(over));
                }
                Activity::Copy(_) | Activity::Host | Activity::Wait => communication += end - start,
            }
            mixture.add(&node.load, (end - start).0 as f64);
        }
    }
    let time = window.end - window.start;
    let exposed = time - compute;
    let overlapped = Picoseconds(communication.0.saturating_sub(exposed.0)).min(compute);
    let axis = axis.unwrap_or(Axis::Tensor);
    let evenness = if sum > 0.0 { squares.sqrt() / sum } else { 1.0 };
    (Inside { compute, overlapped, axis }, mixture.over(time.0 as f64), evenness as f32)
}

pub(crate) fn activity(work: &Work) -> Activity {
    match work {
        Work::Compute(_) | Work::Join => Activity::Compute,
        Work::Collective { axis, .. } => Activity::Communication(*axis),
        Work::Send { .. } | Work::Receive { .. } => Activity::Communication(Axis::Pipeline),
        Work::Copy { direction, .. } => Activity::Copy(*direction),
        Work::HostUpdate(_) | Work::Process(_) => Activity::Host,
    }
}

/// When each local node of a run starts and ends, counted from the run's start; `None` if the layer stream could
/// start before the run or ends last.
fn local_windows(
    nodes: &[Node],
    run: Range<usize>,
    slowed_runs: &mut Vec<SlowedRun>,
) -> Option<Vec<Range<Picoseconds>>> {
    let mut windows = vec![Picoseconds::ZERO..Picoseconds::ZERO; run.len()];
    // When each stream has done what was put on it, and whether the two ever work at once.
    let (mut compute, mut tensor, mut overlap) = (Picoseconds::ZERO, Picoseconds::ZERO, false);
    for index in run.clone().filter(|index| is_local(&nodes[*index])) {
        let node = &nodes[index];
        let NodeAction::Local(time) = node.action else { continue };
        let mut waited = node.after.iter().filter(|earlier| run.contains(&usize::from(**earlier))).peekable();
        if node.stream == Stream::Layer && waited.peek().is_none() {
            return None;
        }
        let (stream, other) = match node.stream {
            Stream::Compute => (&mut compute, tensor),
            _ => (&mut tensor, compute),
        };
        let ready =
            waited.map(|earlier| windows[usize::from(*earlier) - run.start].end).fold(*stream, Ord::max);
        overlap |= ready < other && time > Picoseconds::ZERO;
        *stream = ready + time;
        windows[index - run.start] = ready..*stream;
    }
    if overlap {
        // Of nodes that are not local only the positions matter.
        let same = |one: &Node, other: &Node| match is_local(one) {
            true => one == other,
            false => !is_local(other),
        };
        let known = slowed_runs.iter().rev().find(|known| {
            known.first == run.start
                && known.nodes.len() == run.len()
                && known.nodes.iter().zip(&nodes[run.clone()]).all(|(one, other)| same(one, other))
        });
        windows = match known {
            Some(known) => known.windows.clone(),
            None => {
                let windows = slowed_windows(nodes, run.clone());
                let nodes = nodes[run.clone()].to_vec();
                slowed_runs.push(SlowedRun { first: run.start, nodes, windows: windows.clone() });
                windows
            }
        };
    }
    let last = |stream| {
        let on_stream =
            run.clone().filter(|index| is_local(&nodes[*index]) && nodes[*index].stream == stream);
        on_stream.map(|index| windows[index - run.start].end).max().unwrap_or(Picoseconds::ZERO)
    };
    (last(Stream::Layer) <= last(Stream::Compute)).then_some(windows)
}

/// The windows of a run whose two streams slow each other.
fn slowed_windows(nodes: &[Node], run: Range<usize>) -> Vec<Range<Picoseconds>> {
    let mut graph = Graph::with_capacity(run.len());
    let queues = [graph.add_queue(), graph.add_queue()];
    let mut ops = vec![None; run.len()];
    for index in run.clone().filter(|index| is_local(&nodes[*index])) {
        let node = &nodes[index];
        let NodeAction::Local(time) = node.action else { continue };
        let op = graph.add(queues[usize::from(node.stream != Stream::Compute)], Timing::Takes(time));
        let uses = graph.add_uses(&[Use { device: 0, load: node.load, thread: None }]);
        graph.set_uses(op, uses);
        let earlier = node.after.iter().filter_map(|earlier| usize::from(*earlier).checked_sub(run.start));
        earlier.filter_map(|earlier| ops[earlier]).for_each(|earlier| graph.wait(op, earlier));
        ops[index - run.start] = Some(op);
    }
    let outcome = graph.run().expect("ops wait for earlier ones only");
    let window = |op: &Option<OpId>| {
        op.map_or(Picoseconds::ZERO..Picoseconds::ZERO, |op| outcome.started[op]..outcome.ended[op])
    };
    ops.iter().map(window).collect()
}
