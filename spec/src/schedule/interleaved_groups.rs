//! Interleaved 1F1B for any number of microbatches.

use super::interleaved::{needs_several_stages, passes};
use super::one_f_one_b::one_forward_one_backward;
use super::{ActionLists, PipelineShape, Schedule};

/// Interleaved 1F1B with ⌊m/p⌋ groups of nearly equal sizes, each of at least p microbatches if the step has p: with
/// smaller groups a rank would wait for its previous stage. Larger groups keep more activations.
pub struct InterleavedGroups;

impl Schedule for InterleavedGroups {
    fn name(&self) -> &str {
        "interleaved-groups"
    }

    fn summary(&self) -> &str {
        "interleaved in groups of at least p microbatches: m need not divide by p"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / (m v), m >= p"
    }

    fn source(&self) -> &str {
        "Llama Team 2024, arXiv 2407.21783, section 3.3.2"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        needs_several_stages(self.name(), shape)
    }

    /// In several groups of p it is interleaved 1F1B.
    fn same_as(
        &self,
        PipelineShape { ranks: p, microbatches: m, .. }: PipelineShape,
    ) -> Option<&'static str> {
        (m > p && m.is_multiple_of(p)).then_some("interleaved")
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let PipelineShape { ranks: p, virtual_stages: v, microbatches: m } = shape;
        let count = (m / p).max(1);
        // The larger groups come first: the first one decides how far forward runs ahead.
        let groups: Vec<usize> = (0..count).map(|group| m / count + usize::from(group < m % count)).collect();
        let of_rank = |rank| {
            let warm_up = 2 * (p - rank - 1) + (v - 1) * groups[0];
            one_forward_one_backward(m * v, warm_up, passes(rank, shape, &groups))
        };
        (0..p).map(of_rank).collect()
    }

    /// (p − 1) / (m v) from m = p on, else of the ideal run.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        let PipelineShape { ranks: p, virtual_stages: v, microbatches: m } = shape;
        match m >= p {
            true => (p as f64 - 1.0) / (m * v) as f64,
            false => super::ideal::bubble_over_work(self, shape),
        }
    }
}
