//! V-Min: a third of 1F1B's activations.

use super::v_shape::{self, Block};
use super::{ActionLists, PipelineShape, Schedule};

/// Down the ranks and back up without any wait: a third of 1F1B's activations, the least of V-shaped schedules.
pub struct VMin;

impl Schedule for VMin {
    fn name(&self) -> &str {
        "v-min"
    }

    fn summary(&self) -> &str {
        "V-shaped, I and W apart: a third of 1F1B's activations, about two thirds of its bubble"
    }

    fn bubble(&self) -> &str {
        "(4p - 5) / (6 m)"
    }

    fn source(&self) -> &str {
        "Qi et al. 2024, arXiv 2405.15362"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        v_shape::check(self.name(), shape)
    }

    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        v_shape::rank_of(stage, shape)
    }

    /// Lifetimes of both stages' activations: 2 · 2 (p − 1) passes on each rank, of which a microbatch comes every 6:
    /// ⌊(p + 4) / 3⌋ activations of a rank's stages together. On rank r, F up and I up come at −r, F down and I down
    /// at r; they fall together on some rank unless their distances are odd.
    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let waits = match shape.ranks {
            2 => [4, 0, 0],
            p if p.is_multiple_of(3) => [2, 0, 2],
            _ => [0, 0, 0],
        };
        let block = Block { shifts: [1, 1, 1, 1], waits };
        v_shape::fill(shape, &block.order(shape), 2 * ((shape.ranks + 4) / 3))
    }

    /// Of the ideal run for F = I = W: (4p − 5) / (6 m) from p = 3 on, if m is large enough.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        super::ideal::bubble_over_work(self, shape)
    }
}
