//! The ring: every rank passes pieces to the next one.

use super::{Algorithm, Placement, STARTUP};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// Every collective by messages to the next rank, or in pairs (all-to-all).
#[derive(Debug, Clone, Copy)]
pub struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    /// T = T₀ + r [c α_between + (p − 1 − c) α_inside + (p − 1)/p · n / β] + 2 n / (p M)
    ///
    /// p ranks on N nodes, n bytes, r = 2 rounds for an all-reduce and 1 else; α latency of a step, β narrowest
    /// link of the ring in one direction; a piece crosses between nodes c = min(N, p − 1) times in a round (N > 1).
    /// With equal links the first part is r (p − 1) (α + n / (p β)). M is what a GPU's memory reaches: each rank
    /// also reads and writes one piece in its own memory, which shows in small groups on fast links.
    /// A broadcast and a reduce are pipelined along the ring: n / β instead of (p − 1)/p · n / β; so is a
    /// send-receive, of one step; a barrier is an all-reduce of nothing. An all-to-all is counted as p − 1 steps in
    /// which each rank sends a piece to another one.
    /// Assumes that no other flow shares the links.
    /// Source: Patarasuk & Yuan 2009, J. Parallel Distrib. Comput. 69(2), 117–124, for the first part; the copy
    /// explains why 2 A100s reach 0.86 of the bus bandwidth of 8 (VIA-Research/vTrain trace/a100).
    fn time(&self, kind: CollectiveKind, bytes: Bytes, placement: &Placement) -> Option<Seconds> {
        let steps = placement.ranks.saturating_sub(1);
        let (rounds, steps) = match kind {
            CollectiveKind::AllReduce | CollectiveKind::Barrier => (2.0, steps),
            CollectiveKind::SendReceive => (1.0, steps.min(1)),
            _ => (1.0, steps),
        };
        let crossings = if placement.nodes > 1 { placement.nodes.min(steps) } else { 0 };
        let between = placement.between.map_or(Seconds::ZERO, |link| link.latency);
        let latency = crossings as f64 * between + (steps - crossings) as f64 * placement.inside.latency;
        let piece = bytes / placement.ranks.max(1) as f64;
        let transfer = match kind {
            CollectiveKind::Barrier => Seconds::ZERO,
            CollectiveKind::Broadcast | CollectiveKind::Reduce | CollectiveKind::SendReceive => {
                bytes / placement.ring_bandwidth()
            }
            _ => steps as f64 * (piece / placement.ring_bandwidth()),
        };
        Some(STARTUP + rounds * (latency + transfer) + 2.0 * piece / placement.memory)
    }
}
