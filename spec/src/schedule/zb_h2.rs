//! ZB-H2: no bubble for twice the memory of 1F1B.

use super::zb_h1::one_stage;
use super::{ActionLists, PipelineShape, Schedule};

/// Twice ZB-H1's forwards before the first backward and twice its delay of W: no idle time between a rank's first and
/// last pass, for the activations of 2p − 1 microbatches.
pub struct ZbH2;

impl Schedule for ZbH2 {
    fn name(&self) -> &str {
        "zb-h2"
    }

    fn summary(&self) -> &str {
        "zero bubble: no idle time within a rank for F = I = W, activations of 2p - 1 microbatches"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / (3 m), m >= 2p - 1: only the start-up"
    }

    fn source(&self) -> &str {
        "Qi et al. 2024, arXiv 2401.10241, section 2"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::one_stage_per_rank(self.name(), shape)
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let of_rank = |rank| one_stage(rank, shape, 2 * (shape.ranks - rank - 1), 2 * rank);
        (0..shape.ranks).map(of_rank).collect()
    }

    /// The start-up of the last rank, (p − 1) F, is all that is left of the bubble for F = I = W from m = 2p − 1 on;
    /// below that, of the ideal run.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        let (p, m) = (shape.ranks, shape.microbatches);
        match m + 1 >= 2 * p {
            true => (p as f64 - 1.0) / (3.0 * m as f64),
            false => super::ideal::bubble_over_work(self, shape),
        }
    }
}
