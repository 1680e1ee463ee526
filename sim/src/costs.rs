//! Costs of ops: the seam between a program and the hardware it runs on.
//!
//! ```text
//! Program op ── Query::of ──► Query { rank, op, work } ── Costs::cost ──► Cost { time, load, delivery }
//! ```
//!
//! Every route to a step time takes the times of ops from `Costs::cost`, so that all of them price an op alike. Costs that wrap
//! others (a cache, a test's) pass on all four methods: none has a default that a wrapper could forget.

mod by_ranks;
mod cluster;
mod measured;

pub use cluster::ClusterCosts;
pub use measured::{measured_sweep, measured_time};

use crate::engine::{Load, Scheduling};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{
    CollectiveCall, CopyDirection, Group, HostUpdate, Kernel, Op, Pass, Place, Program, RankProgram, Stream,
    Work,
};
use trainwright_spec::units::{Bytes, Seconds};

/// One thing that a rank does, whose cost is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Query<'a> {
    /// The global rank that does it.
    pub rank: usize,
    /// Module and pass of the program's op that it is; `None` where it is not part of a program.
    pub op: Option<(&'a str, Pass)>,
    /// The work.
    pub work: QueryWork<'a>,
}

/// The inputs of a cost, for each kind of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueryWork<'a> {
    /// A kernel call.
    Kernel(&'a Kernel),
    /// A collective of `bytes` (the whole tensor, as `Work::Collective` counts them) over a group.
    Collective {
        /// Which one.
        kind: CollectiveKind,
        /// The whole tensor.
        bytes: Bytes,
        /// What performs it.
        call: CollectiveCall,
        /// Its members.
        group: &'a Group,
    },
    /// A message to another rank.
    Message {
        /// Its size.
        bytes: Bytes,
        /// The global rank of the receiver.
        to: usize,
        /// Whether the sender's kernels wait for it. A message on a separate stream holds nobody up.
        blocking: bool,
    },
    /// A copy between the GPU's memory and the host's or a drive.
    Copy {
        /// Which way.
        direction: CopyDirection,
        /// Where to or from.
        place: Place,
        /// How much.
        bytes: Bytes,
    },
    /// Work of the node's processors for this rank, while they do the same for the node's others.
    HostUpdate(&'a HostUpdate),
    /// Time that the rank's process spends by itself.
    Process(Seconds),
}

impl<'a> Query<'a> {
    /// The query for an op of one of a program's ranks; `None` if the op takes no time by itself: a join, a receive, which
    /// ends with its send, and a collective over an axis of one rank.
    pub fn of(program: &'a Program, rank: &RankProgram, op: &'a Op) -> Option<Self> {
        let work = match &op.work {
            Work::Compute(kernel) => QueryWork::Kernel(kernel),
            Work::Collective { kind, axis, bytes, call } => {
                let group = &program.groups[rank.groups[*axis as usize]?];
                QueryWork::Collective { kind: *kind, bytes: *bytes, call: *call, group }
            }
            Work::Send { to, bytes, .. } => QueryWork::Message {
                bytes: *bytes,
                to: program.ranks[rank.pipeline[*to]].rank,
                blocking: op.stream != Stream::Send,
            },
            Work::Copy { direction, place, bytes } => {
                QueryWork::Copy { direction: *direction, place: *place, bytes: *bytes }
            }
            Work::HostUpdate(update) => QueryWork::HostUpdate(update),
            Work::Process(time) => QueryWork::Process(*time),
            Work::Receive { .. } | Work::Join => return None,
        };
        Some(Self { rank: rank.rank, op: Some((op.module, op.pass)), work })
    }
}

/// The time and load of an op.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// How long the rank is busy with it if nothing else runs.
    pub time: Seconds,
    /// Its load of its rank's hardware meanwhile.
    pub load: Load,
    /// How a message goes on after its sender is done with it; `None` if it has arrived by then, and for all other work.
    pub delivery: Option<Delivery>,
}

impl Cost {
    /// A cost of time alone, which loads nothing.
    pub fn of_time(time: Seconds) -> Self {
        Self { time, ..Self::default() }
    }
}

/// A message that its sender has handed to the operating system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delivery {
    /// From the start of the send until the message has arrived.
    pub time: Seconds,
    /// The parts of the sender's machine's cores and of the receiver's that it takes meanwhile.
    pub cores: [f64; 2],
}

/// Conditions of all ops on some hardware.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Conditions<'a> {
    /// Whether the cost of a query depends on its `op`, not on its work alone.
    pub by_op: bool,
    /// How ranks that outnumber a machine's cores take turns on them; `None` if they share them all the time.
    pub scheduling: Option<Scheduling>,
    /// Factors, equally likely and with the mean 1, of the times of ops that compute on cores; empty if every op takes its time.
    pub jitter: &'a [f64],
}

/// Times and loads of ops on some hardware, each op alone.
pub trait Costs {
    /// Time and load of one op on one rank.
    fn cost(&self, query: &Query) -> Cost;

    /// The kind of device that a global rank has. Ranks of one kind take the same time for kernels, copies and host updates.
    fn device(&self, rank: usize) -> usize;

    /// The machine whose cores a global rank shares with other ranks; `None` if it shares none.
    fn machine(&self, rank: usize) -> Option<usize>;

    /// The conditions of all ops.
    fn conditions(&self) -> Conditions<'_>;
}
