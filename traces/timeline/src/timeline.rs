//! Timelines: the spans and the memory of every rank of one training step.
//!
//! A simulated step and a measured one look the same here.

use trainwright_spec::program::{Axis, CopyDirection, MemoryKind, Pass, Stream};
use trainwright_spec::schedule::Action;
use trainwright_spec::units::{Bytes, Picoseconds};

/// All spans of a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// The ranks, each perhaps standing for many.
    pub ranks: Vec<RankTrack>,
    /// Names that spans refer to.
    pub labels: Vec<String>,
    /// Runs of segments that spans belong to.
    pub calls: Vec<CallTrack>,
    /// Ordered by rank, then stream, then start; those of one stream never overlap.
    pub spans: Vec<Span>,
    /// Ordered by rank, then time.
    pub memory: Vec<MemoryChange>,
    /// From the step's start to the end of its last span.
    pub duration: Picoseconds,
}

/// One rank of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankTrack {
    /// The global rank.
    pub rank: usize,
    /// Ranks with equal spans, including this one.
    pub stands_for: usize,
    /// Its coordinate on the pipeline axis.
    pub pipeline_rank: usize,
}

impl RankTrack {
    /// `rank 4`, or `rank 4 ×16` if it stands for 16 ranks.
    pub fn name(&self) -> String {
        match self.stands_for {
            1 => format!("rank {}", self.rank),
            count => format!("rank {} ×{count}", self.rank),
        }
    }
}

/// One run of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTrack {
    /// Index into `Timeline::ranks`.
    pub rank: usize,
    /// The schedule's action, if it is one.
    pub action: Option<Action>,
}

/// One op with its start and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index into `Timeline::ranks`.
    pub rank: u32,
    /// Index into `Timeline::labels`.
    pub label: u32,
    /// Index into `Timeline::calls`.
    pub call: u32,
    /// Which stream it ran on.
    pub stream: Stream,
    /// Which part of the step it belongs to.
    pub pass: Pass,
    /// The kind of work.
    pub activity: Activity,
    /// When it began.
    pub start: Picoseconds,
    /// When it ended.
    pub end: Picoseconds,
}

/// The kind of work of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    /// A kernel.
    Compute,
    /// Moving data over an axis of the mesh.
    Communication(Axis),
    /// Moving data between the GPU's memory and the host's.
    Copy(CopyDirection),
    /// Work of the node's processors.
    Host,
    /// Waiting for another rank: a receive before its message comes, a collective before its last member.
    Wait,
}

/// Memory taken or given back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryChange {
    /// Index into `Timeline::ranks`.
    pub rank: u32,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// When.
    pub time: Picoseconds,
    /// Positive when taken, negative when given back.
    pub bytes: Bytes,
}
