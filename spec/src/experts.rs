//! How a mixture of experts is spread over ranks: which tokens visit which experts, and how they get there and back.
//!
//! ```text
//! local tokens ─► copies ─► exchanges ─► rows of local experts ─► grouped products ─► the same moves backwards ─► local tokens
//! ```
//!
//! A `Dispatcher` is the list of moves from a rank's tokens to its experts' rows. Forward's combine and backward's
//! dispatch do the same moves in the other order, each turned round; backward's combine does them again as they are.
//! The rank of an expert axis with the most to do stands for all: the others wait for it. Nothing here
//! knows pipelines, kernels or the hardware.

mod all_gather;
mod all_to_all;
mod by_node;
mod by_rank;
mod forwarded;
mod load;
mod routing;
mod trace;

pub use all_gather::AllGather;
pub use all_to_all::AllToAll;
pub use by_node::{ByNode, nodes_of_a_token};
pub use by_rank::ByRank;
pub use forwarded::Forwarded;
pub use load::Load;
pub use routing::{Gate, Routing, Spread};
pub use trace::LayerTokens;

use crate::catalog::nearest;
use crate::collective::CollectiveKind;
use crate::error::SpecError;
use crate::program::Axis;
use crate::units::Bytes;

/// One way to bring tokens to their experts.
pub trait Dispatcher: Sync {
    /// The name in plans and tables.
    fn name(&self) -> &'static str;

    /// One line for `show dispatchers`.
    fn summary(&self) -> &'static str;

    /// Where it is described.
    fn source(&self) -> &'static str;

    /// Whether it tells the ranks of a node (`Mesh::expert_inner`) from others.
    fn tells_nodes(&self) -> bool {
        false
    }

    /// Whether the software must have kernels for it (`Stack::dispatch_multiprocessors`).
    fn needs_kernels(&self) -> bool {
        false
    }

    /// The moves of a microbatch's tokens between the router and the experts, in order.
    fn moves(&self, visits: &Visits) -> Vec<Move>;
}

/// Every dispatcher. A new one is a file in `experts/` and a line here.
pub static DISPATCHERS: &[&dyn Dispatcher] = &[&AllToAll, &AllGather, &ByNode, &ByRank, &Forwarded];

/// The dispatcher of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn dispatcher(name: &str) -> Result<&'static dyn Dispatcher, SpecError> {
    let known = DISPATCHERS.iter().copied().find(|dispatcher| dispatcher.name() == name);
    known.ok_or_else(|| SpecError::UnknownName {
        kind: "dispatcher",
        name: name.into(),
        nearest: nearest(name, DISPATCHERS.iter().map(|dispatcher| dispatcher.name())),
    })
}

/// What software does that has a flexible dispatcher (DeepEP, HybridEP), with its kernels or without: where the experts
/// of a layer are on several nodes, or on one.
pub fn flexible(has_kernels: bool, over_nodes: bool) -> &'static dyn Dispatcher {
    match (has_kernels, over_nodes) {
        (true, true) => &Forwarded,
        (true, false) => &ByRank,
        (false, _) => &ByNode,
    }
}

/// The tokens of a microbatch and where they go, seen from the busiest rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visits {
    /// Size of one token, h · e.
    pub token: Bytes,
    /// Tokens that a rank dispatches, T.
    pub tokens: usize,
    /// Copies of them that experts take, T · k where none is dropped.
    pub sent: usize,
    /// Rows that the experts of the busiest rank compute, T · k · F where all ranks are alike.
    pub rows: usize,
    /// Copies that come to each rank of the busiest node where a token comes to a node once.
    pub node_rows: f64,
    /// Copies that come to the busiest rank where a token comes to a rank once.
    pub rank_rows: f64,
    /// Ranks that share the experts, E.
    pub expert: usize,
    /// Neighbouring ones of them that are in one node.
    pub inner: usize,
    /// Ranks that share each expert and have different tokens, F.
    pub expert_tensor: usize,
}

/// A step of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Move {
    /// A token is copied once for each of its experts; the other way the copies are weighed and summed.
    Copy {
        /// All tokens.
        tokens: Bytes,
        /// All copies.
        copies: Bytes,
    },
    /// Rows are brought into the order of their experts.
    Sort(Bytes),
    /// An all-to-all by kernels made for it, which send a token to a rank once, and sum on the way back what it sent.
    Tokens {
        /// Over which axis.
        axis: Axis,
        /// Size of the tensor that a rank receives, its part counted.
        bytes: Bytes,
        /// Where a token comes to a node once, and from there to its ranks: the tensor that a rank receives for its
        /// node, its part counted.
        over_nodes: Option<Bytes>,
    },
    /// A collective; the other way an all-gather is a reduce-scatter.
    Exchange {
        /// Which operation.
        kind: CollectiveKind,
        /// Over which axis.
        axis: Axis,
        /// Size of the full tensor.
        bytes: Bytes,
    },
}

impl Move {
    /// A collective among `ranks`; `None` if there is only one.
    fn exchange(kind: CollectiveKind, axis: Axis, ranks: usize, bytes: Bytes) -> Option<Move> {
        (ranks > 1).then_some(Move::Exchange { kind, axis, bytes })
    }

    /// The kind of an exchange on the way back.
    pub fn reversed(kind: CollectiveKind) -> CollectiveKind {
        match kind {
            CollectiveKind::AllGather => CollectiveKind::ReduceScatter,
            other => other,
        }
    }
}

impl Visits {
    /// The ranks of an expert join their rows; no move where it is on one rank.
    fn join_rows(&self) -> Option<Move> {
        let rows = self.rows as f64 * self.token;
        Move::exchange(CollectiveKind::AllGather, Axis::ExpertTensor, self.expert_tensor, rows)
    }

    /// Tokens from several ranks are in the order of the ranks.
    fn sort(&self) -> Option<Move> {
        (self.expert > 1).then_some(Move::Sort(self.rows as f64 * self.token))
    }

    /// An exchange by kernels, an all-gather among the ranks of an expert, then the copies: `bytes` of tokens come to a
    /// rank, `over_nodes` to a rank for its node.
    fn by_kernels(&self, bytes: Bytes, over_nodes: Option<Bytes>) -> Vec<Move> {
        let joined = self.expert_tensor as f64 * bytes;
        let sent = (self.expert > 1).then_some(Move::Tokens { axis: Axis::Expert, bytes, over_nodes });
        let join = Move::exchange(CollectiveKind::AllGather, Axis::ExpertTensor, self.expert_tensor, joined);
        let copies = self.rows as f64 * self.token;
        sent.into_iter().chain(join).chain([Move::Copy { tokens: joined, copies }]).collect()
    }

    /// The copies that a rank makes of its tokens before they leave it.
    fn copy(&self) -> Move {
        Move::Copy { tokens: self.tokens as f64 * self.token, copies: self.sent as f64 * self.token }
    }
}
