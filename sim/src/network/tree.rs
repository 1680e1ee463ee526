//! The double binary tree over nodes, with a chain through the GPUs of each node.

use super::placement::pipelined;
use super::{Algorithm, Call, Placement, Protocol};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// Tree all-reduce: fewer steps than a ring, so faster for small messages on many nodes.
#[derive(Debug, Clone, Copy)]
pub struct Tree;

impl Algorithm for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    /// T = L + 2 n / B, with NCCL's latency L and bandwidth B
    ///
    /// L = base + 2 [(k − 1) α_inside + ⌊log₂ N⌋ α_between]; B is that of the narrowest link times factors of the
    /// protocol, up to its cap, and times a correction that falls to a half at medium sizes.
    /// Source: ncclTopoTuneModel and ncclTopoGetAlgoTime in NCCL's src/graph/tuning.cc; constants from the catalog.
    fn expected(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        if !can(call.kind, placement) {
            return None;
        }
        let (constants, factors, channels) =
            (placement.nccl, &placement.nccl.factors, placement.channels() as f64);
        let link = placement.ring_bandwidth();
        let tree = (factors.tree * link).min(channels * placement.cap(&constants.caps.tree));
        let bandwidth = match call.protocol {
            Protocol::Simple => tree,
            Protocol::LowLatency => (factors.tree_ll * link).min(placement.cap(&constants.caps.ll)),
            Protocol::LowLatency128 => {
                let factor =
                    if placement.nodes > 1 { factors.tree_ll128 } else { factors.tree_ll128_one_node };
                (factor * tree).min(channels * placement.cap(&constants.caps.tree_ll128))
            }
        };
        let unbalanced = if placement.nodes > 1 { factors.tree_unbalanced } else { 1.0 };
        let corrections = match call.protocol {
            Protocol::LowLatency => &constants.tree_corrections.ll,
            Protocol::LowLatency128 => &constants.tree_corrections.ll128,
            Protocol::Simple => &constants.tree_corrections.simple,
        };
        let correction = match call.bytes / Bytes::new(64.0) {
            units if units < 1.0 => 1.0,
            units => corrections.get(libm::log2(units) as usize).copied().unwrap_or(1.0),
        };
        let inside = placement.tree_step(call.protocol);
        let between = placement.tree_crossing(call.protocol) + placement.expected_wire(call.protocol);
        let depth = 2.0 * (chain(placement) * inside + placement.expected_tree_depth() * between);
        let latency = call.protocol.time(&constants.base.tree) + depth;
        Some(latency + 2.0 * call.bytes / (unbalanced * correction * bandwidth))
    }

    /// T = T₀ + W + (√B + √(2 n / β))², B = 2 [(k − 1) α_inside + ⌈log₂ N⌉ α_between], W = 2 ⌈log₂ N⌉ ω
    ///
    /// k ranks on each of N nodes, n bytes; α NCCL's part of a step, ω what the network adds to one between nodes
    /// (`pipelined`); β what the protocol reaches of the narrowest link in one direction, ⌈log₂ N⌉ the depth of NCCL's
    /// trees. Each of two trees carries half of the tensor up and down; a node is inner in one and a leaf in the
    /// other, so it sends and receives 2 n in all. T₀ as for the ring.
    /// Source: Sanders, Speck & Träff 2009, Parallel Computing 35(12), 581–594; the chain as in NCCL's
    /// src/graph/tuning.cc.
    fn time(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        if !can(call.kind, placement) {
            return None;
        }
        let inside = placement.tree_step(call.protocol);
        let between = placement.tree_crossing(call.protocol);
        let busy = 2.0 * (chain(placement) * inside + placement.tree_depth() * between);
        let delay = 2.0 * placement.tree_depth() * placement.wire(call.protocol);
        let start = placement.start + call.protocol.time(&placement.nccl.base.tree);
        let bandwidth = placement.reached(placement.ring_bandwidth(), call);
        Some(start + pipelined(busy, delay, 2.0 * call.bytes, bandwidth))
    }
}

fn can(kind: CollectiveKind, placement: &Placement) -> bool {
    placement.ranks > 1 && matches!(kind, CollectiveKind::AllReduce | CollectiveKind::Barrier)
}

/// Steps through the GPUs of a node.
fn chain(placement: &Placement) -> f64 {
    placement.ranks_per_node.saturating_sub(1) as f64
}
