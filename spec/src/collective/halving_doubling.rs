//! Recursive halving and doubling: pairs at distances 1, 2, 4, … exchange ever smaller parts, then larger ones.

use super::steps::{Chunks, Effect, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// Reduce-scatter by halving, all-gather by doubling, all-reduce by both.
///
/// log₂ p steps each way for a power of two, (p − 1)/p · n sent by each rank. Nearest ranks exchange the largest
/// parts. Other numbers of ranks can only all-reduce: with q the next lower power of two, the first p − q pairs of
/// neighbours first sum on one of both, which hands the result back in the end.
/// Source: Rabenseifner 2004, ICCS, LNCS 3036, 1–9; Thakur, Rabenseifner & Gropp 2005, Int. J. High Perform.
/// Comput. Appl. 19(1), 49–66.
#[derive(Debug, Clone, Copy)]
pub struct HalvingDoubling;

impl Algorithm for HalvingDoubling {
    fn name(&self) -> &'static str {
        "halving-doubling"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let cube = Cube::within(layout.ranks());
        let (halving, doubling) =
            (|level| cube.exchange(level, Effect::Add), |level| cube.exchange(level, Effect::Copy));
        let levels = 0..cube.levels;
        let phases: Vec<Phase> = match kind {
            CollectiveKind::AllReduce => [cube.between_pairs(Effect::Add)]
                .into_iter()
                .chain(levels.clone().map(halving))
                .chain(levels.rev().map(doubling))
                .chain([cube.between_pairs(Effect::Copy)])
                .collect(),
            CollectiveKind::ReduceScatter if cube.surplus == 0 => levels.map(halving).collect(),
            CollectiveKind::AllGather if cube.surplus == 0 => levels.rev().map(doubling).collect(),
            _ => return None,
        };
        Some(Steps::new(kind, layout, cube.corners(), phases))
    }
}

/// 2^levels ranks, each the corner of a hypercube, and the surplus.
#[derive(Debug, Clone, Copy)]
struct Cube {
    levels: u32,
    surplus: usize,
}

impl Cube {
    fn within(ranks: usize) -> Self {
        let levels = ranks.ilog2();
        Self { levels, surplus: ranks - (1 << levels) }
    }

    fn corners(self) -> usize {
        1 << self.levels
    }

    /// The rank at a corner: the odd one of each pair, then those that have no pair.
    fn rank(self, corner: usize) -> usize {
        if corner < self.surplus { 2 * corner + 1 } else { corner + self.surplus }
    }

    /// Each corner exchanges with the one at distance 2^level. Before a halving, and after a doubling, it has the
    /// chunks that equal its number in the last `level` bits; after it, and before, in one more.
    fn exchange(self, level: u32, effect: Effect) -> Phase {
        let (distance, stride) = (1 << level, 2 << level);
        Phase::new(1, move |_| {
            let transfer = |corner| {
                let other = corner ^ distance;
                let owner = match effect {
                    Effect::Add => other,
                    Effect::Copy => corner,
                };
                let chunks = Chunks { first: owner % stride, count: self.corners() / stride, stride };
                Transfer::new(self.rank(corner), self.rank(other), chunks, effect)
            };
            (0..self.corners()).map(transfer).collect()
        })
    }

    /// Even ranks add to their odd neighbours, or get the result from them.
    fn between_pairs(self, effect: Effect) -> Phase {
        let all = Chunks::range(0, self.corners());
        Phase::new(self.surplus.min(1), move |_| {
            let transfer = |pair| {
                let (even, odd) = (2 * pair, 2 * pair + 1);
                match effect {
                    Effect::Add => Transfer::new(even, odd, all, effect),
                    Effect::Copy => Transfer::new(odd, even, all, effect),
                }
            };
            (0..self.surplus).map(transfer).collect()
        })
    }
}
