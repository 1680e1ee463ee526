//! 1F1B: after a warm-up, one forward and one backward in turn.

use super::{Action, ActionKind, ActionLists, PipelineShape, Schedule};

/// One forward, one backward: GPipe's bubble with the activations of min(m, p − r) microbatches on rank r.
pub struct OneForwardOneBackward;

impl Schedule for OneForwardOneBackward {
    fn name(&self) -> &str {
        "1f1b"
    }

    fn summary(&self) -> &str {
        "one forward, one backward in turn; keeps the activations of min(m, p - r) microbatches"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / m"
    }

    fn source(&self) -> &str {
        "Fan et al. 2021 (DAPPLE), arXiv 2007.01045; Narayanan et al. 2021, arXiv 2104.04473"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::one_stage_per_rank(self.name(), shape)
    }

    fn searched(&self) -> bool {
        true
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let of_rank = |stage| {
            let at = |kind, microbatch| Action { stage, kind, microbatch };
            one_forward_one_backward(shape.microbatches, shape.ranks - stage - 1, at)
        };
        (0..shape.ranks).map(of_rank).collect()
    }

    /// (p − 1) / m.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / shape.microbatches as f64
    }
}

/// `warm_up` forwards, or all of `passes`; then one forward, one backward in turn; then the backwards that are left. `at` is
/// the k-th pass of a kind.
pub(super) fn one_forward_one_backward(
    passes: usize,
    warm_up: usize,
    at: impl Fn(ActionKind, usize) -> Action,
) -> Vec<Action> {
    in_turn(passes, warm_up, |k| at(ActionKind::Forward, k), |k| vec![at(ActionKind::Backward, k)])
}

/// `one_forward_one_backward` with I in the place of each backward, and each W `put_off` passes behind its I.
pub(super) fn with_weights_put_off(
    passes: usize,
    warm_up: usize,
    put_off: usize,
    at: impl Fn(ActionKind, usize) -> Action,
) -> Vec<Action> {
    let backward = |k: usize| {
        let weight = k.checked_sub(put_off).map(|k| at(ActionKind::Weight, k));
        std::iter::once(at(ActionKind::Input, k)).chain(weight).collect()
    };
    let mut actions = in_turn(passes, warm_up, |k| at(ActionKind::Forward, k), backward);
    actions.extend((passes.saturating_sub(put_off)..passes).map(|k| at(ActionKind::Weight, k)));
    actions
}

fn in_turn(
    passes: usize,
    warm_up: usize,
    forward: impl Fn(usize) -> Action,
    backward: impl Fn(usize) -> Vec<Action>,
) -> Vec<Action> {
    let warm_up = warm_up.min(passes);
    let mut actions: Vec<Action> = (0..warm_up).map(&forward).collect();
    for k in warm_up..passes {
        actions.push(forward(k));
        actions.extend(backward(k - warm_up));
    }
    actions.extend((passes - warm_up..passes).flat_map(backward));
    actions
}
