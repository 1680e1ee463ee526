//! The list itself: chunks of a tensor that move between the members of a group, step by step.

use super::{CollectiveKind, Layout};
use crate::units::Bytes;
use std::fmt;

/// The steps of a collective, in order.
///
/// All transfers of a step read what the step before left, and no transfer writes a chunk that another one of the
/// same step reads at the same member, so that a step may run in any order; only where several transfers add to one
/// chunk does the order of the list decide how a floating-point sum rounds. Afterwards ranks hold their `output`;
/// what their other chunks hold means nothing.
#[derive(Debug)]
pub struct Steps {
    kind: CollectiveKind,
    ranks: usize,
    chunks: usize,
    switches: Vec<Switch>,
    phases: Vec<Phase>,
}

impl Steps {
    /// Phases of no steps are left out.
    pub(super) fn new(kind: CollectiveKind, layout: Layout, chunks: usize, phases: Vec<Phase>) -> Self {
        let phases = phases.into_iter().filter(|phase| phase.steps > 0).collect();
        Self { kind, ranks: layout.ranks(), chunks, switches: Vec::new(), phases }
    }

    pub(super) fn with_switches(self, switches: impl IntoIterator<Item = Switch>) -> Self {
        Self { switches: switches.into_iter().collect(), ..self }
    }

    /// Into how many equal chunks a buffer of the collective's size is cut.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// How many different chunks there are: chunks are numbered 0..names.
    ///
    /// That is `chunks`, save where members' buffers hold different things. In an all-to-all, chunk s · p + d is
    /// the part that rank s has for rank d; in a send-receive, chunk r is the message of rank r.
    pub fn names(&self) -> usize {
        match self.kind {
            CollectiveKind::AllToAll | CollectiveKind::SendReceive => self.chunks * self.ranks,
            _ => self.chunks,
        }
    }

    /// Bytes of a chunk, for a collective of that size.
    pub fn chunk(&self, size: Bytes) -> Bytes {
        size / self.chunks as f64
    }

    /// The chunks that a rank brings.
    pub fn input(&self, rank: usize) -> Chunks {
        match self.kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::Reduce => self.all(),
            CollectiveKind::AllGather => self.part(rank),
            CollectiveKind::Broadcast => self.all_if(rank == 0),
            CollectiveKind::AllToAll | CollectiveKind::SendReceive => {
                Chunks::range(rank * self.chunks, self.chunks)
            }
            CollectiveKind::Barrier => Chunks::NONE,
        }
    }

    /// The chunks that a rank takes home.
    pub fn output(&self, rank: usize) -> Chunks {
        match self.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather | CollectiveKind::Broadcast => self.all(),
            CollectiveKind::ReduceScatter => self.part(rank),
            CollectiveKind::Reduce => self.all_if(rank == 0),
            CollectiveKind::AllToAll => Chunks { first: rank, count: self.ranks, stride: self.ranks },
            CollectiveKind::SendReceive => Chunks::one((rank + self.ranks - 1) % self.ranks),
            CollectiveKind::Barrier => Chunks::NONE,
        }
    }

    /// The kinds of the members after the ranks: member p + i is switch i.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// Ranks and switches.
    pub fn members(&self) -> usize {
        self.ranks + self.switches.len()
    }

    /// Runs of alike steps, one after the other.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// How many steps there are.
    pub fn count(&self) -> usize {
        self.phases.iter().map(Phase::steps).sum()
    }

    /// The transfers of every step, made one step at a time.
    pub fn iter(&self) -> impl Iterator<Item = Vec<Transfer>> + '_ {
        self.phases.iter().flat_map(|phase| (0..phase.steps).map(|index| phase.transfers(index)))
    }

    fn all(&self) -> Chunks {
        Chunks::range(0, self.chunks)
    }

    fn all_if(&self, condition: bool) -> Chunks {
        if condition { self.all() } else { Chunks::NONE }
    }

    /// The p-th part of the tensor that belongs to a rank.
    fn part(&self, rank: usize) -> Chunks {
        let part = self.chunks / self.ranks;
        Chunks::range(rank * part, part)
    }
}

impl fmt::Display for Steps {
    /// A line for each step. Members from p on are switches.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for transfers in self.iter() {
            let transfers: Vec<String> = transfers.iter().map(Transfer::to_string).collect();
            writeln!(f, "{}", transfers.join("  "))?;
        }
        Ok(())
    }
}

/// A member that is no rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Switch {
    /// The switches inside the group's node of this number, seen as one.
    Node(usize),
    /// The switches between nodes, seen as one.
    Fabric,
}

/// Steps that are alike: the same members send equally many chunks to the same members; only which chunks differs.
///
/// Steps are made when read: a ring over 16,384 ranks has 32,766 steps of 16,384 transfers, and whoever times it
/// looks at one of each phase.
pub struct Phase {
    steps: usize,
    step: Box<dyn Fn(usize) -> Vec<Transfer> + Send + Sync>,
}

impl Phase {
    /// `steps` alike steps; `step` makes the one of an index below that.
    pub(super) fn new(steps: usize, step: impl Fn(usize) -> Vec<Transfer> + Send + Sync + 'static) -> Self {
        Self { steps, step: Box::new(step) }
    }

    /// How many steps there are, at least one.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The transfers of the step of that index, all at once.
    ///
    /// # Panics
    /// If `index` is not below the number of steps.
    pub fn transfers(&self, index: usize) -> Vec<Transfer> {
        assert!(index < self.steps, "step {index} of a phase of {}", self.steps);
        (self.step)(index)
    }
}

impl fmt::Debug for Phase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Phase").field("steps", &self.steps).finish_non_exhaustive()
    }
}

/// One message from a member to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// What: the same numbers at both ends.
    pub chunks: Chunks,
    /// What the receiver does with it.
    pub effect: Effect,
}

impl Transfer {
    pub(super) fn new(from: usize, to: usize, chunks: Chunks, effect: Effect) -> Self {
        // A layout has fewer ranks than half of u32, and there are at most as many switches.
        Self { from: from as u32, to: to as u32, chunks, effect }
    }
}

impl fmt::Display for Transfer {
    /// `0→1 add 2..4`, `0→1 copy 0,3,6`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}→{} {} {}", self.from, self.to, self.effect.name(), self.chunks)
    }
}

/// How a receiver uses chunks that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// They replace those of the receiver.
    Copy,
    /// They are added to those of the receiver; a switch that has none yet keeps the first ones.
    Add,
}

impl Effect {
    fn name(self) -> &'static str {
        match self {
            Effect::Copy => "copy",
            Effect::Add => "add",
        }
    }
}

/// Some chunks, by number: `first`, `first + stride`, …, `count` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunks {
    /// The first number.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// From each to the next.
    pub stride: usize,
}

impl Chunks {
    /// The chunks of a message without content.
    pub(super) const NONE: Chunks = Chunks { first: 0, count: 0, stride: 1 };

    pub(super) fn one(number: usize) -> Self {
        Self::range(number, 1)
    }

    pub(super) fn range(first: usize, count: usize) -> Self {
        Self { first, count, stride: 1 }
    }

    /// Their numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| self.first + index * self.stride)
    }
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match (self.count, self.stride) {
            (0, _) => f.write_str("nothing"),
            (1, _) => write!(f, "{}", self.first),
            (count, 1) => write!(f, "{}..{}", self.first, self.first + count),
            _ => {
                let numbers: Vec<String> = self.iter().map(|number| number.to_string()).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}
