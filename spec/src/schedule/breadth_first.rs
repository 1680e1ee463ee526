//! Breadth-first: every microbatch through a stage before the next stage.

use super::{Action, ActionKind, ActionLists, PipelineShape, Schedule};

/// All forwards of a rank's first stage, of its second, …, then all backwards in the opposite order: each stage's
/// gradients are complete as early as can be, for the activations of all microbatches.
pub struct BreadthFirst;

impl Schedule for BreadthFirst {
    fn name(&self) -> &str {
        "breadth-first"
    }

    fn summary(&self) -> &str {
        "all microbatches through each stage in turn; keeps the activations of m microbatches"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / (m v)"
    }

    fn source(&self) -> &str {
        "Lamy-Poirier 2023, arXiv 2211.05953"
    }

    /// With fewer microbatches than ranks a rank would wait for its first stage.
    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        let PipelineShape { ranks, virtual_stages, microbatches } = shape;
        match virtual_stages == 1 || microbatches >= ranks {
            true => Ok(()),
            false => Err(format!(
                "schedule `breadth-first` needs as many microbatches as its {ranks} pipeline ranks, not \
                 {microbatches}"
            )),
        }
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let PipelineShape { ranks, virtual_stages, microbatches } = shape;
        let pass = |stage, kind| (0..microbatches).map(move |microbatch| Action { stage, kind, microbatch });
        let of_rank = |rank| {
            let stages = (0..virtual_stages).map(|chunk| chunk * ranks + rank);
            let forward = stages.clone().flat_map(|stage| pass(stage, ActionKind::Forward));
            forward.chain(stages.rev().flat_map(|stage| pass(stage, ActionKind::Backward))).collect()
        };
        (0..ranks).map(of_rank).collect()
    }

    /// (p − 1) / (m v).
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / (shape.microbatches * shape.virtual_stages) as f64
    }
}
