//! 1F1B: after a warm-up, one forward and one backward in turn.

use super::{Action, ActionKind, PipelineShape, Schedule};

/// One forward, one backward: GPipe's bubble with the activations of min(m, p − r) microbatches on rank r.
pub struct OneForwardOneBackward;

impl Schedule for OneForwardOneBackward {
    fn name(&self) -> &'static str {
        "1f1b"
    }

    fn summary(&self) -> &'static str {
        "one forward, one backward in turn; keeps the activations of min(m, p - r) microbatches"
    }

    fn source(&self) -> &'static str {
        "Fan et al. 2021 (DAPPLE), arXiv 2007.01045; Narayanan et al. 2021, arXiv 2104.04473"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::one_stage_per_rank(self.name(), shape)
    }

    fn actions(&self, rank: usize, shape: PipelineShape) -> Vec<Action> {
        let m = shape.microbatches;
        let warm_up = (shape.ranks - rank - 1).min(m);
        let at = |kind, microbatch| Action { stage: rank, kind, microbatch };
        let mut actions: Vec<Action> = (0..warm_up).map(|i| at(ActionKind::Forward, i)).collect();
        for i in warm_up..m {
            actions.push(at(ActionKind::Forward, i));
            actions.push(at(ActionKind::Backward, i - warm_up));
        }
        actions.extend((m - warm_up..m).map(|i| at(ActionKind::Backward, i)));
        actions
    }

    /// (p − 1) / m.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / shape.microbatches as f64
    }
}
