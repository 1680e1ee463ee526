//! Interleaved 1F1B: several smaller stages on each rank.

use super::{Action, ActionKind, PipelineShape, Schedule};

/// Depth-first interleaving as in Megatron-LM: microbatches go through the rank's stages in groups of p.
pub struct Interleaved;

impl Schedule for Interleaved {
    fn name(&self) -> &'static str {
        "interleaved"
    }

    fn summary(&self) -> &'static str {
        "1F1B with v stages per rank: 1/v of the bubble for v times the messages; m must divide by p"
    }

    fn source(&self) -> &'static str {
        "Narayanan et al. 2021, arXiv 2104.04473, section 2.2"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        let PipelineShape { ranks, virtual_stages, microbatches } = shape;
        if ranks < 2 {
            return Err("schedule `interleaved` needs a pipeline of at least 2 ranks".into());
        }
        if virtual_stages < 2 {
            return Err(format!(
                "schedule `interleaved` needs at least 2 virtual stages, not {virtual_stages}"
            ));
        }
        if !microbatches.is_multiple_of(ranks) {
            return Err(format!(
                "schedule `interleaved` needs a number of microbatches that divides by the {ranks} pipeline \
                 ranks, not {microbatches}"
            ));
        }
        Ok(())
    }

    fn actions(&self, rank: usize, shape: PipelineShape) -> Vec<Action> {
        let PipelineShape { ranks: p, virtual_stages: v, microbatches: m } = shape;
        // The k-th pass of a kind works on chunk (k mod pv) / p of the rank and on microbatch k mod p of its group.
        let at = |kind, k: usize| {
            let chunk = k % (p * v) / p;
            let chunk = if kind == ActionKind::Forward { chunk } else { v - 1 - chunk };
            Action { stage: chunk * p + rank, kind, microbatch: k / (p * v) * p + k % p }
        };
        let passes = m * v;
        let warm_up = if m == p { passes } else { (2 * (p - rank - 1) + (v - 1) * p).min(passes) };
        let mut actions: Vec<Action> = (0..warm_up).map(|k| at(ActionKind::Forward, k)).collect();
        for k in warm_up..passes {
            actions.push(at(ActionKind::Forward, k));
            actions.push(at(ActionKind::Backward, k - warm_up));
        }
        actions.extend((passes - warm_up..passes).map(|k| at(ActionKind::Backward, k)));
        actions
    }

    /// (p − 1) / (m v).
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / (shape.microbatches * shape.virtual_stages) as f64
    }
}
