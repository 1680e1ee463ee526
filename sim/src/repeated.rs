//! A program that is run many times with other durations, and which rank waits for which in a run.
//!
//! The caller gives a run a factor for every piece of work; where factors come from is not known here.

use crate::costs::Costs;
use crate::engine::{Deadlock, OpId, Outcome, Timing};
use crate::flat::Flat;
use crate::template::{Detail, NodeAction};
use std::collections::BTreeMap;
use trainwright_spec::program::{Program, Stream};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::timeline::Activity;

/// A program with its durations.
pub struct Repeated {
    flat: Flat,
    /// The rank of each op, an index into `Program::ranks`.
    ranks: Vec<u32>,
    pieces: Vec<Piece>,
    rank_count: usize,
}

/// An op, or several that one rank does one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    /// An index into `Program::ranks`; of a collective, the first of its members.
    pub rank: usize,
    /// Its kind.
    pub kind: Kind,
    /// √(Σ t²) / Σ t of the ops in it: 1 for one op, less the more evenly its time is spread over many.
    pub evenness: f64,
    /// The part of its time in which the rank's GPU computes, 0 to 1; in the rest its tensor group communicates.
    pub computing: f64,
}

/// The kind of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Work of a rank by itself, with the exchanges of its tensor group meanwhile.
    Work,
    /// A collective or a message between others.
    Network,
}

/// How long the ranks of a run waited for others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    /// From the first op's start to the last one's end.
    pub step: Picoseconds,
    /// By waiting rank and the rank it waited for, both indices into `Program::ranks`: while the first had nothing to
    /// compute, and the second had not yet come to a collective or sent its message. The time that the collective or
    /// the message itself took is not in it.
    pub pairs: BTreeMap<(u32, u32), Picoseconds>,
}

impl Repeated {
    /// Lays a program out, call by call where its ops can be joined.
    pub fn new(program: &Program, costs: &impl Costs, detail: Detail) -> Repeated {
        let flat = Flat::new(program, costs, detail);
        let piece = |op: OpId| {
            let (_, node) = flat.node(op);
            let by_itself = matches!(node.action, NodeAction::Local(_));
            let moves = matches!(node.activity, Activity::Communication(_)) && node.inside.is_none();
            let kind = if by_itself && !moves { Kind::Work } else { Kind::Network };
            let computing = match (node.inside, node.action) {
                (Some(inside), NodeAction::Local(time)) if time > Picoseconds::ZERO => {
                    inside.compute.0 as f64 / time.0 as f64
                }
                _ => 1.0,
            };
            Piece { rank: flat.rank(op), kind, evenness: f64::from(node.evenness), computing }
        };
        let ops = (0..flat.graph.len() as u32).map(OpId);
        let (ranks, pieces) =
            (ops.clone().map(|op| flat.rank(op) as u32).collect(), ops.map(piece).collect());
        Repeated { flat, ranks, pieces, rank_count: program.ranks.len() }
    }

    /// How many ops a run has.
    pub fn ops(&self) -> usize {
        self.flat.graph.len()
    }

    /// Runs the program with every duration times the factor of its piece. `factor` is called in program order.
    ///
    /// # Errors
    /// `Deadlock` if its ops wait for each other.
    pub fn run(&self, mut factor: impl FnMut(&Piece) -> f64) -> Result<Waiting, Deadlock> {
        let graph = self.flat.graph.with_times(|op, time| {
            let factor = factor(&self.pieces[op]);
            Picoseconds((time.0 as f64 * factor).round() as u64)
        });
        let outcome = graph.run()?;
        let step = outcome.ended.iter().copied().max().unwrap_or(Picoseconds::ZERO);
        Ok(Waiting { step, pairs: self.pairs(&outcome) })
    }

    fn pairs(&self, outcome: &Outcome) -> BTreeMap<(u32, u32), Picoseconds> {
        let graph = &self.flat.graph;
        // What each op waited for last.
        let mut binding: Vec<Option<OpId>> = vec![None; graph.len()];
        for (earlier, op) in graph.edges() {
            let known = &mut binding[op];
            let later = |known: OpId| outcome.ended[earlier] > outcome.ended[known];
            if known.is_none_or(later) {
                *known = Some(earlier);
            }
        }
        let last = self.last_members(outcome);
        // When the last op on the compute stream of each rank ended.
        let mut free = vec![Picoseconds::ZERO; self.rank_count];
        let mut pairs: BTreeMap<(u32, u32), Picoseconds> = BTreeMap::new();
        for op in (0..graph.len() as u32).map(OpId) {
            if self.flat.stream(op) != Stream::Compute {
                continue;
            }
            let rank = self.ranks[op];
            let idle_since = std::mem::replace(&mut free[rank as usize], outcome.ended[op]);
            let mut blame = |other: u32, until: Picoseconds, from: Picoseconds| {
                let from = from.max(idle_since);
                if other != rank && from < until {
                    *pairs.entry((rank, other)).or_default() += until - from;
                }
            };
            // From op to the op it waited for last, back to when this rank last computed.
            let mut at = Some(op);
            while let Some(waiting) = at.filter(|waiting| outcome.ended[*waiting] > idle_since) {
                match graph.timings()[waiting] {
                    Timing::Rendezvous(rendezvous, _) => {
                        let late = last[rendezvous].map_or(rank, |(op, _)| self.ranks[op]);
                        blame(late, outcome.started[waiting], outcome.posted[waiting]);
                    }
                    Timing::EndsWith(send) => {
                        blame(self.ranks[send], outcome.started[send], outcome.posted[waiting]);
                    }
                    Timing::Takes(_) => {}
                }
                at = binding[waiting].filter(|_| outcome.posted[waiting] > idle_since);
            }
        }
        pairs
    }

    /// The member of each rendezvous that came last, and when.
    fn last_members(&self, outcome: &Outcome) -> Vec<Option<(OpId, Picoseconds)>> {
        let mut last: Vec<Option<(OpId, Picoseconds)>> = Vec::new();
        for (op, timing) in (0..).map(OpId).zip(self.flat.graph.timings()) {
            if let Timing::Rendezvous(rendezvous, _) = *timing {
                last.resize(last.len().max(usize::from(rendezvous) + 1), None);
                let posted = outcome.posted[op];
                let known = &mut last[rendezvous];
                if known.is_none_or(|(_, latest)| posted > latest) {
                    *known = Some((op, posted));
                }
            }
        }
        last
    }
}
