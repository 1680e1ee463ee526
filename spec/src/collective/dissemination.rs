//! The dissemination barrier: with each step a rank knows of twice as many that have come.

use super::steps::{Chunks, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Effect, Layout, Steps};

/// Barrier in ⌈log₂ p⌉ steps: in step s each rank sends an empty message to the 2^s-th one after it.
///
/// Source: Hensgen, Finkel & Manber 1988, Int. J. Parallel Programming 17(1), 1–17.
#[derive(Debug, Clone, Copy)]
pub struct Dissemination;

impl Algorithm for Dissemination {
    fn name(&self) -> &'static str {
        "dissemination"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let CollectiveKind::Barrier = kind else { return None };
        let ranks = layout.ranks();
        let step = |level: u32| {
            let message =
                move |rank| Transfer::new(rank, (rank + (1 << level)) % ranks, Chunks::NONE, Effect::Copy);
            Phase::new(1, move |_| (0..ranks).map(message).collect())
        };
        let levels = ranks.next_power_of_two().ilog2();
        Some(Steps::new(kind, layout, 1, (0..levels).map(step).collect()))
    }
}
