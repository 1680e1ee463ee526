//! The binomial tree: whoever has the tensor hands it to one more in each step.

use super::steps::{Chunks, Effect, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// Broadcast and reduce in ⌈log₂ p⌉ steps of the whole tensor: for small ones.
///
/// The longest way comes first in a broadcast and last in a reduce, so that few messages leave their nodes.
/// Source: Thakur, Rabenseifner & Gropp 2005, Int. J. High Perform. Comput. Appl. 19(1), 49–66.
#[derive(Debug, Clone, Copy)]
pub struct BinomialTree;

impl Algorithm for BinomialTree {
    fn name(&self) -> &'static str {
        "binomial-tree"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let ranks = layout.ranks();
        let levels = 0..ranks.next_power_of_two().ilog2();
        let phases = match kind {
            CollectiveKind::Broadcast => levels.rev().map(|level| hop(ranks, level, Effect::Copy)).collect(),
            CollectiveKind::Reduce => levels.map(|level| hop(ranks, level, Effect::Add)).collect(),
            _ => return None,
        };
        Some(Steps::new(kind, layout, 1, phases))
    }
}

/// Between multiples of 2^(level + 1) and the rank 2^level after each.
fn hop(ranks: usize, level: u32, effect: Effect) -> Phase {
    let distance = 1 << level;
    Phase::new(1, move |_| {
        let transfer = |rank: usize| {
            let (from, to) = match effect {
                Effect::Copy => (rank, rank + distance),
                Effect::Add => (rank + distance, rank),
            };
            Transfer::new(from, to, Chunks::one(0), effect)
        };
        (0..ranks - distance).step_by(2 * distance).map(transfer).collect()
    })
}
