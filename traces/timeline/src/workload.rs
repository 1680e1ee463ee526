//! The op lists of ranks as a trace gives them, ready to be replayed.
//!
//! Nothing here knows the format of a trace, or what an op costs that the trace gives no time of.

use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{CollectiveCall, Pass, Stream};
use trainwright_spec::units::{Bytes, Flops, Picoseconds};

/// The op lists of some ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// By rank, ascending.
    pub ranks: Vec<RankWork>,
    /// The groups that collectives name, each with its ranks.
    pub groups: Vec<Vec<usize>>,
}

/// The op list of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankWork {
    /// The global rank.
    pub rank: usize,
    /// Ranks with equal op lists, including this one.
    pub stands_for: usize,
    /// Each waits for earlier ones only.
    pub tasks: Vec<Task>,
}

/// One op of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// For people.
    pub name: String,
    /// Tasks of a queue run one after the other.
    pub queue: Queue,
    /// Indices of earlier tasks that must have ended.
    pub after: Vec<usize>,
    /// The op of a program that it is; `None` if the trace does not name one.
    pub op: Option<OpName>,
    /// What it does.
    pub does: Does,
}

/// Module and pass of an op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpName {
    /// The part of the model.
    pub module: String,
    /// The part of the step.
    pub pass: Pass,
}

/// Where a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Queue {
    /// The stream that its trace names.
    Stream(Stream),
    /// As soon as what it waits for has ended.
    Free(Stream),
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Does {
    /// Takes its time.
    Compute(Cost),
    /// Compute without a recorded time: operations and bytes of memory traffic.
    Operations(Flops, Bytes),
    /// A copy to the host's memory or from it.
    Copy(Cost),
    /// Work of the host.
    Host(Picoseconds),
    /// A collective over a group, an index into `Workload::groups`.
    Collective(CollectiveKind, Bytes, CollectiveCall, usize),
    /// A message to a rank.
    Send(usize, i64, Bytes),
    /// A message with that tag from a rank.
    Receive(usize, i64),
}

/// Time and share of a GPU of an op; traces have them of compute and copies only.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// How long it takes alone.
    pub time: Picoseconds,
    /// Its share of its GPU.
    pub need: Need,
}

/// The parts of its time, 0 to 1, in which an op needs a part of its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Need {
    /// A kernel needs all multiprocessors.
    pub multiprocessor_bound: f64,
    /// A kernel needs all memory bandwidth.
    pub memory_bound: f64,
    /// Share of the memory bandwidth that a copy takes all the time.
    pub memory_traffic: f64,
    /// Share that it takes all the time of the cores that ranks of a machine share.
    pub cores: f64,
    /// See `crowding` of a load: by how much its time grows if ranks want more cores than there are.
    pub crowding: f64,
}
