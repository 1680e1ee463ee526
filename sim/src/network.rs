//! Times of a collective or a message on a cluster when nothing else uses the same links.
//!
//! ```text
//! ranks + Cluster ─► Placement ─► what NCCL expects of every Algorithm × Protocol ─► its Choice ─► the time that takes
//! ```
//!
//! NCCL chooses by its expectations, which are not the times: both are here, `Algorithm::expected` and
//! `Algorithm::time`. The only other traffic that is counted is that of the group's siblings: the other
//! ranks of the same nodes work at the same time in groups of the same shape, as all axes of a mesh do. Nothing here
//! knows what a collective is for.

mod choice;
mod direct;
mod in_switch;
mod placement;
mod ring;
pub mod steps;
pub mod topology;
mod tree;
mod uplinks;
mod wired;

pub use choice::{Call, Choice, Forced, Protocol};
pub use direct::Direct;
pub use in_switch::{Nvls, NvlsTree};
pub use placement::{Link, Placement};
pub use ring::Ring;
pub use tree::Tree;

use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::nccl::Constants;
use trainwright_spec::program::CollectiveCall;
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// One way to do a collective.
pub trait Algorithm: Sync {
    /// The name in tables.
    fn name(&self) -> &'static str;

    /// Whether a version of NCCL knows it.
    fn is_in(&self, _version: &Constants) -> bool {
        true
    }

    /// The time that NCCL expects, by which it chooses; `None` if the algorithm cannot do it.
    fn expected(&self, call: &Call, placement: &Placement) -> Option<Seconds>;

    /// The time from the call to the end; `None` if the algorithm cannot do it.
    fn time(&self, call: &Call, placement: &Placement) -> Option<Seconds>;

    /// How many channels it uses: one for each `channels.bytes` of each chunk, up to all there are.
    ///
    /// Source: NCCL's src/enqueue.cc; sizes from the catalog.
    fn channels(&self, call: &Call, placement: &Placement) -> usize {
        call.channels.unwrap_or_else(|| {
            let bytes = call.protocol.bytes(&placement.nccl.channels.bytes);
            let useful = (call.bytes / (self.chunks(call, placement) as f64 * bytes)) as usize;
            useful.clamp(1, placement.channels())
        })
    }

    /// Into how many chunks a message is cut before channels are counted.
    ///
    /// Source: as `channels`.
    fn chunks(&self, _call: &Call, _placement: &Placement) -> usize {
        1
    }
}

/// Every algorithm.
pub const ALGORITHMS: [&dyn Algorithm; 5] = [&Ring, &Tree, &Nvls, &NvlsTree, &Direct];

/// Time of a collective over a tensor of `bytes` among global `ranks`, as NCCL would do it in a separate call.
///
/// `bytes` is the whole tensor, the largest buffer any member has: the input of an all-reduce or reduce-scatter,
/// the output of an all-gather. Rank r is a GPU of node r / (GPUs per node). One rank, or no bytes, takes no time.
///
/// # Panics
/// If a rank is not on the cluster, or the ranks are on several nodes that have no NICs: `Cluster` refuses those.
pub fn collective_time(kind: CollectiveKind, bytes: Bytes, ranks: &[usize], cluster: &Cluster) -> Seconds {
    called_time(CollectiveCall::Single, kind, bytes, ranks, cluster)
}

/// Time of a collective in a call of the given kind.
///
/// That of a kernel for tokens: T = max(T_links, n / (s ρ)), T_links the time of an all-to-all of the same tensor of n
/// bytes, in which a token counts once for each rank; s multiprocessors that move ρ each (the call's figure, else
/// `Communication::token_rate`).
/// If it takes a token to each node once, and passes it on there while others arrive, T_links is the longer of two times:
/// of an all-to-all of what comes to a rank for its node, and of one of the n bytes among the ranks of a node.
pub(crate) fn called_time(
    call: CollectiveCall,
    kind: CollectiveKind,
    bytes: Bytes,
    ranks: &[usize],
    cluster: &Cluster,
) -> Seconds {
    let placement = match cluster.is_mixed() {
        false => Placement::new(ranks, cluster),
        true => slowest(kind, bytes, ranks, cluster).1,
    };
    let placement = match call {
        CollectiveCall::Single => placement,
        CollectiveCall::Coalesced => placement.without_ring_gap(),
        CollectiveCall::TokenKernel { multiprocessors, over_nodes, rate } => {
            let over_links = match over_nodes.filter(|_| placement.nodes > 1) {
                None => placement.collective_time(kind, bytes),
                Some(away) => {
                    let between = placement.collective_time(kind, Bytes::new(away as f64));
                    between.max(placement.of_a_node().collective_time(kind, bytes))
                }
            };
            let moved = |rate: BytesPerSecond| bytes / (multiprocessors as f64 * rate);
            let rate = rate.map(|rate| BytesPerSecond::new(rate as f64)).or(placement.token_rate);
            return rate.filter(|_| ranks.len() > 1).map_or(over_links, |rate| over_links.max(moved(rate)));
        }
    };
    placement.collective_time(kind, bytes)
}

/// The kind of node on which a collective takes longest, of those that the ranks are on, and their placement as if all of
/// them were of that kind. Where unlike nodes work together, all go at the pace of the slowest.
pub(crate) fn slowest(
    kind: CollectiveKind,
    bytes: Bytes,
    ranks: &[usize],
    cluster: &Cluster,
) -> (usize, Placement) {
    let mut kinds = cluster.kinds_of(ranks).into_iter();
    let on = |of_node: usize| (of_node, Placement::on(ranks, cluster, cluster.node_of(of_node)));
    let first = on(kinds.next().unwrap_or(0));
    let time = |placed: &(usize, Placement)| placed.1.collective_time(kind, bytes);
    kinds.map(on).fold(first, |most, other| if time(&other) > time(&most) { other } else { most })
}

/// Time of a message of `bytes` from one rank to another, while the other GPUs of the nodes send theirs.
///
/// A message to itself, or of no bytes, takes no time; see `Direct` for the others.
///
/// # Panics
/// As `collective_time`.
pub fn message_time(bytes: Bytes, from: usize, to: usize, cluster: &Cluster) -> Seconds {
    match from == to {
        true => Seconds::ZERO,
        false => collective_time(CollectiveKind::SendReceive, bytes, &[from, to], cluster),
    }
}

impl Placement {
    /// Time of a collective over a tensor of `bytes` as NCCL would do it; see the function of this name.
    pub fn collective_time(&self, kind: CollectiveKind, bytes: Bytes) -> Seconds {
        let choice = self.choose(kind, bytes, &Forced::default());
        choice.expect("the ring or direct messages do every collective").time
    }
}
