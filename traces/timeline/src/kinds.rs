//! The kinds of op by which a measured step and a forecast one are compared.

use std::collections::BTreeMap;
use std::fmt;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Kernel, Work};
use trainwright_spec::units::Seconds;

/// The kind of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// Matrix products.
    Gemm,
    /// Attention in one kernel.
    Attention,
    /// One pass over memory: norms, activations, optimizers, copies on the GPU.
    Elementwise,
    /// A collective.
    Collective(CollectiveKind),
    /// Messages between stages.
    Message,
    /// Copies between the GPU and its node, and work of its processors.
    Offload,
    /// Work of the rank's process.
    Process,
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OpKind::Gemm => f.pad("gemm"),
            OpKind::Attention => f.pad("attention"),
            OpKind::Elementwise => f.pad("elementwise"),
            OpKind::Collective(kind) => f.pad(&kind.to_string()),
            OpKind::Message => f.pad("send and receive"),
            OpKind::Offload => f.pad("offload"),
            OpKind::Process => f.pad("process"),
        }
    }
}

impl OpKind {
    /// The kind of an op's work; `None` for a join, and for a receive, whose time is its send's.
    pub fn of(work: &Work) -> Option<OpKind> {
        match work {
            Work::Compute(Kernel::Gemm { .. }) => Some(OpKind::Gemm),
            Work::Compute(Kernel::FusedAttention(_)) => Some(OpKind::Attention),
            Work::Compute(Kernel::Streaming { .. }) => Some(OpKind::Elementwise),
            Work::Collective { kind, .. } => Some(OpKind::Collective(*kind)),
            Work::Send { .. } => Some(OpKind::Message),
            Work::Copy { .. } | Work::HostUpdate(_) => Some(OpKind::Offload),
            Work::Process(_) => Some(OpKind::Process),
            Work::Receive { .. } | Work::Join => None,
        }
    }
}

/// How often ops of each kind run in a step of one rank, and how long all of them take.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KindTimes(pub BTreeMap<OpKind, (u64, Seconds)>);

impl KindTimes {
    /// Adds ops.
    pub fn add(&mut self, kind: OpKind, count: u64, time: Seconds) {
        let (all, total) = self.0.entry(kind).or_insert((0, Seconds::ZERO));
        *all += count;
        *total += time;
    }
}
