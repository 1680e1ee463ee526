//! Eager 1F1B: more forwards first, so that messages have time.

use super::one_f_one_b::one_forward_one_backward;
use super::{Action, ActionLists, PipelineShape, Schedule};

/// 1F1B with 2 (p − r) − 1 instead of p − r forwards before the first backward: a message to the next rank may take as
/// long as a forward and a backward without delaying it, for up to twice the activations.
pub struct Eager;

impl Schedule for Eager {
    fn name(&self) -> &str {
        "eager-1f1b"
    }

    fn summary(&self) -> &str {
        "1F1B with 2 (p - r) - 1 forwards before the first backward: hides messages between ranks"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / m"
    }

    fn source(&self) -> &str {
        "Zhuang et al. 2023, arXiv 2211.05322, section 4"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::one_stage_per_rank(self.name(), shape)
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let of_rank = |stage| {
            let at = |kind, microbatch| Action { stage, kind, microbatch };
            one_forward_one_backward(shape.microbatches, 2 * (shape.ranks - stage - 1), at)
        };
        (0..shape.ranks).map(of_rank).collect()
    }

    /// (p − 1) / m.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / shape.microbatches as f64
    }
}
