//! GPipe: all forwards, then all backwards.

use super::{Action, ActionKind, ActionLists, PipelineShape, Schedule};

/// All forwards, then all backwards: the simplest, and the one that keeps every microbatch's activations.
pub struct GPipe;

impl Schedule for GPipe {
    fn name(&self) -> &str {
        "gpipe"
    }

    fn summary(&self) -> &str {
        "all forwards, then all backwards; keeps the activations of m microbatches"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / m"
    }

    fn source(&self) -> &str {
        "Huang et al. 2019, arXiv 1811.06965"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::one_stage_per_rank(self.name(), shape)
    }

    fn searched(&self) -> bool {
        true
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let of_rank = |stage| {
            let pass =
                |kind| (0..shape.microbatches).map(move |microbatch| Action { stage, kind, microbatch });
            pass(ActionKind::Forward).chain(pass(ActionKind::Backward)).collect()
        };
        (0..shape.ranks).map(of_rank).collect()
    }

    /// (p − 1) / m.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / shape.microbatches as f64
    }
}
