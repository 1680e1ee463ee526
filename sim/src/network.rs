//! What a collective or a message costs on a cluster when nothing else uses the same links.
//!
//! ```text
//! ranks + Cluster ─► Placement ─► every Algorithm of ALGORITHMS ─► the fastest, as NCCL's tuner would choose
//! ```
//!
//! The one traffic that is counted beside the group's own is that of its siblings: the other ranks of the same
//! nodes work at the same time in groups of the same shape, as all axes of a mesh do. Nothing here knows what a
//! collective is for.

mod in_switch;
mod placement;
mod ring;
mod tree;

pub use in_switch::InSwitch;
pub use placement::{Link, Placement};
pub use ring::Ring;
pub use tree::Tree;

use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// Time from the start of a collective's kernel to its first step.
///
/// Source: NCCL 2.27.7 src/graph/tuning.cc, base latency of ring and tree with the Simple protocol.
pub const STARTUP: Seconds = Seconds::new(8.4e-6);

/// One way to do a collective.
pub trait Algorithm: Sync {
    /// The name in tables.
    fn name(&self) -> &'static str;

    /// Time of a collective over a tensor of `bytes`; none where the algorithm cannot do it.
    fn time(&self, kind: CollectiveKind, bytes: Bytes, placement: &Placement) -> Option<Seconds>;
}

/// Every algorithm.
pub const ALGORITHMS: [&dyn Algorithm; 3] = [&Ring, &Tree, &InSwitch];

/// Time of a collective over a tensor of `bytes` among global `ranks`: that of the fastest algorithm.
///
/// `bytes` is the whole tensor, the largest buffer any member has: the input of an all-reduce or reduce-scatter,
/// the output of an all-gather. Rank r is a GPU of node r / (GPUs per node). One rank, or no bytes, takes no time
/// (a barrier has no bytes and takes time).
///
/// # Panics
/// If a rank is not on the cluster, or the ranks are on several nodes that have no NICs: `Cluster` refuses those.
pub fn collective_time(kind: CollectiveKind, bytes: Bytes, ranks: &[usize], cluster: &Cluster) -> Seconds {
    Placement::new(ranks, cluster).collective_time(kind, bytes)
}

/// Time of a message of `bytes` from one rank to another.
///
/// T = T₀ + α + n / β
///
/// T₀ start of the kernel, n message bytes. In a node, α and β are the latency and the achieved bandwidth of one
/// GPU's link; between nodes they are the NICs' latency and the GPU's share of the node's NICs, since the other
/// GPUs of the node send their messages at the same time. A message to itself, or of no bytes, takes no time.
///
/// # Panics
/// As `collective_time`.
pub fn message_time(bytes: Bytes, from: usize, to: usize, cluster: &Cluster) -> Seconds {
    if from == to || bytes == Bytes::ZERO {
        return Seconds::ZERO;
    }
    let placement = Placement::new(&[from, to], cluster);
    let link = placement.between.unwrap_or(placement.inside);
    STARTUP + link.latency + bytes / link.bandwidth
}

impl Placement {
    /// Time of the fastest algorithm for a collective over a tensor of `bytes`; see `collective_time`.
    pub fn collective_time(&self, kind: CollectiveKind, bytes: Bytes) -> Seconds {
        self.fastest(kind, bytes).1
    }

    /// The fastest algorithm for a collective over a tensor of `bytes`, and its time.
    pub fn fastest(&self, kind: CollectiveKind, bytes: Bytes) -> (&'static dyn Algorithm, Seconds) {
        if self.ranks <= 1 || (bytes == Bytes::ZERO && kind != CollectiveKind::Barrier) {
            return (&Ring, Seconds::ZERO);
        }
        ALGORITHMS
            .into_iter()
            .filter_map(|algorithm| Some((algorithm, algorithm.time(kind, bytes, self)?)))
            .min_by(|(_, a), (_, b)| a.get().total_cmp(&b.get()))
            .expect("the ring does every collective")
    }
}
