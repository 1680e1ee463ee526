//! Interleaved 1F1B with the halves of backward apart.

use super::interleaved::passes;
use super::one_f_one_b::one_forward_one_backward;
use super::{Action, ActionKind, PipelineShape, Schedule};

/// ZB-H1 over several stages per rank: p − r − 1 + (v − 1) p forwards first, each W r passes behind its I.
pub struct InterleavedZb;

impl Schedule for InterleavedZb {
    fn name(&self) -> &str {
        "interleaved-zb"
    }

    fn summary(&self) -> &str {
        "interleaved with W put off by r passes: a third of its bubble; m must divide by p"
    }

    fn bubble(&self) -> &str {
        "(p - 1) (F + I - W) / (m v (F + I + W))"
    }

    fn source(&self) -> &str {
        "torch.distributed.pipelining, ScheduleInterleavedZeroBubble; Qi et al. 2024, arXiv 2401.10241"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::interleaved::check(self.name(), shape)
    }

    fn actions(&self, rank: usize, shape: PipelineShape) -> Vec<Action> {
        let PipelineShape { ranks: p, virtual_stages: v, microbatches: m } = shape;
        let warm_up = p - rank - 1 + (v - 1) * p;
        let at = passes(rank, shape, vec![p; m / p]);
        let backward = |k: usize| {
            let weight = k.checked_sub(rank).map(|k| at(ActionKind::Weight, k));
            std::iter::once(at(ActionKind::Input, k)).chain(weight).collect()
        };
        let mut actions = one_forward_one_backward(m * v, warm_up, |k| at(ActionKind::Forward, k), backward);
        actions.extend((m * v - rank..m * v).map(|k| at(ActionKind::Weight, k)));
        actions
    }

    /// (p − 1) (F + I − W) / (m v (F + I + W)) for F = I = W: (p − 1) / (3 m v).
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / (3.0 * (shape.microbatches * shape.virtual_stages) as f64)
    }
}
