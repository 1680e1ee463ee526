//! The double binary tree over nodes, with a chain through the GPUs of each node.

use super::placement::pipelined;
use super::{Algorithm, Placement, STARTUP};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// Tree all-reduce over several nodes: fewer steps than a ring, so faster for small messages on many nodes.
#[derive(Debug, Clone, Copy)]
pub struct Tree;

impl Algorithm for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    /// T = T₀ + (√D + √(2 n / β))², D = 2 [(k − 1) α_inside + log₂(N) α_between]
    ///
    /// k ranks on each of N nodes, n bytes, α latency of a step, β narrowest link in one direction. Each of two
    /// trees carries half of the tensor up and down; a node is inner in one and a leaf in the other, so it sends
    /// and receives 2 n in all. None for one node, where the chain is a slower ring.
    /// Source: Sanders, Speck & Träff 2009, Parallel Computing 35(12), 581–594; depth as in NCCL 2.27.7
    /// src/graph/tuning.cc.
    fn time(&self, kind: CollectiveKind, bytes: Bytes, placement: &Placement) -> Option<Seconds> {
        let (CollectiveKind::AllReduce, Some(between)) = (kind, placement.between) else { return None };
        let chain = placement.ranks_per_node.saturating_sub(1) as f64 * placement.inside.latency;
        let depth = 2.0 * (chain + (placement.nodes as f64).log2() * between.latency);
        Some(STARTUP + pipelined(depth, 2.0 * bytes, placement.ring_bandwidth()))
    }
}
