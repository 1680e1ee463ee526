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

mod joined;
mod node;

use crate::costs::{Conditions, Cost, Costs, Query, QueryWork};
use joined::{SlowedRun, joined};
pub(crate) use node::{Inside, Node, NodeAction, NodeId, runs_between_exchanges};
use serde::Serialize;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{
    Axis, Call, CollectiveCall, Kernel, Op, Pass, Program, RankProgram, Segment, Work,
};
use trainwright_spec::units::Bytes;
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
        Detail::Calls => joined(&all, &mut costs.runs).unwrap_or(all),
    }
}

/// Whether any joint calls of a rank take turns, of which `templates` has the nodes by segment. If not, they run one after
/// the other.
fn any_take_turns(calls: &[Call], templates: &[Vec<Node>]) -> bool {
    let is_cut = |call: &Call| runs_between_exchanges(&templates[call.segment]).len() > 1;
    calls.windows(2).any(|pair| pair[0].joint && pair.iter().any(is_cut))
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
            holds_layer: false,
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

pub(crate) fn activity(work: &Work) -> Activity {
    match work {
        Work::Compute(_) | Work::Join => Activity::Compute,
        Work::Collective { axis, .. } => Activity::Communication(*axis),
        Work::Send { .. } | Work::Receive { .. } => Activity::Communication(Axis::Pipeline),
        Work::Copy { direction, .. } => Activity::Copy(*direction),
        Work::HostUpdate(_) | Work::Process(_) => Activity::Host,
    }
}
