//! V-Half: half of 1F1B's activations.

use super::v_shape::{self, Block};
use super::{ActionLists, PipelineShape, Schedule};

/// Down the ranks and back up, where one of each two neighbouring ranks follows after one pass and the other after
/// two: half of 1F1B's activations for half of its bubble.
pub struct VHalf;

impl Schedule for VHalf {
    fn name(&self) -> &str {
        "v-half"
    }

    fn summary(&self) -> &str {
        "V-shaped, I and W apart: half of 1F1B's activations, about half of its bubble"
    }

    fn bubble(&self) -> &str {
        "(3p - 5) / (6 m), odd p: (3p - 4) / (6 m)"
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

    /// Lifetimes of both stages' activations: 3 · 2 (p − 1) passes on each rank, of which a microbatch comes every 6:
    /// p − 1 activations, and 2 or 3 for the passes themselves. The waits keep the passes of a rank apart.
    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let (waits, limit) = match shape.ranks.is_multiple_of(2) {
            true => ([3, 0, 4], shape.ranks + 2),
            false => ([0, 0, 1], shape.ranks + 1),
        };
        let block = Block { shifts: [1, 2, 1, 2], waits };
        v_shape::fill(shape, &block.order(shape), limit)
    }

    /// Of the ideal run for F = I = W: closed forms hold only from about m = p on.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        super::ideal::bubble_over_work(self, shape)
    }
}
