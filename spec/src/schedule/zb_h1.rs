//! ZB-H1: a third of the bubble with the memory of 1F1B.

use super::one_f_one_b::with_weights_put_off;
use super::{Action, ActionLists, PipelineShape, Schedule};

/// 1F1B with the weights' gradients put off: on rank r by r microbatches, so that each rank holds the activations of p
/// microbatches, as the first does in 1F1B.
pub struct ZbH1;

impl Schedule for ZbH1 {
    fn name(&self) -> &str {
        "zb-h1"
    }

    fn summary(&self) -> &str {
        "1F1B with W put off by r microbatches: a third of its bubble, activations of p microbatches"
    }

    fn bubble(&self) -> &str {
        "(p - 1) (F + I - W) / (m (F + I + W))"
    }

    fn source(&self) -> &str {
        "Qi et al. 2024, arXiv 2401.10241, section 2"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::one_stage_per_rank(self.name(), shape)
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        (0..shape.ranks).map(|rank| one_stage(rank, shape, shape.ranks - rank - 1, rank)).collect()
    }

    /// (p − 1) (F + I − W) / (m (F + I + W)) from m = p on, for F = I = W: (p − 1) / (3 m); else of the ideal run.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        match shape.microbatches >= shape.ranks {
            true => (shape.ranks as f64 - 1.0) / (3.0 * shape.microbatches as f64),
            false => super::ideal::bubble_over_work(self, shape),
        }
    }
}

/// One F, one I in turn after `warm_up` forwards, with each W `put_off` microbatches behind its I.
pub(super) fn one_stage(stage: usize, shape: PipelineShape, warm_up: usize, put_off: usize) -> Vec<Action> {
    let at = |kind, microbatch| Action { stage, kind, microbatch };
    with_weights_put_off(shape.microbatches, warm_up, put_off, at)
}
