//! A token goes to each node once, and on to its ranks there while others still arrive.

use super::{Dispatcher, Move, Visits};
use crate::units::Bytes;

/// One exchange by special kernels, an all-gather among the ranks of an expert, then the copies.
///
/// A rank sends (N − 1)/N · T · D · h · e bytes between nodes, D the nodes that a token's experts are on, as `by-node`
/// does, and a token comes to each rank once, as with `by-rank`. Both ways are busy at once: the kernels forward a chunk
/// of tokens over the links of a node while the next one comes from another node.
pub struct Forwarded;

impl Dispatcher for Forwarded {
    fn name(&self) -> &'static str {
        "forwarded"
    }

    fn summary(&self) -> &'static str {
        "a token goes to each node once, in special kernels, which pass it on to its ranks there while others arrive: the slower of (N - 1)/N T D h e bytes a rank between N nodes, D of a token, and of what comes to a rank in its node"
    }

    fn source(&self) -> &'static str {
        "DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437), section 3.2.2: IB sending, IB-to-NVLink forwarding and NVLink receiving by warps of their own; github.com/deepseek-ai/DeepEP, csrc/kernels/internode.cu"
    }

    fn tells_nodes(&self) -> bool {
        true
    }

    fn needs_kernels(&self) -> bool {
        true
    }

    fn moves(&self, visits: &Visits) -> Vec<Move> {
        let size = |rows: f64| Bytes::new((rows * visits.token.get()).ceil());
        visits.by_kernels(size(visits.rank_rows), Some(size(visits.node_rows)))
    }
}
