//! DualPipeV: DualPipe folded at its middle.

use super::dualpipe::{Phases, Side, enough};
use super::{ActionLists, PipelineShape, Schedule, v_shape};

/// One half of DualPipe over 2p stages: each rank holds both stages that a pair of DualPipe's ranks would share, so that
/// no weight is held twice.
pub struct DualPipeV;

impl Schedule for DualPipeV {
    fn name(&self) -> &str {
        "dualpipev"
    }

    fn summary(&self) -> &str {
        "V-shaped half of DualPipe: weights once, 2p + 1 activations of half a rank"
    }

    fn bubble(&self) -> &str {
        "(p - 1) (F&B + B - 3 W) / (2 m F&B)"
    }

    fn source(&self) -> &str {
        "github.com/deepseek-ai/DualPipe; Qi et al. 2024, arXiv 2405.15362"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        v_shape::check(self.name(), shape)?;
        enough(self.name(), shape)
    }

    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        v_shape::rank_of(stage, shape)
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let PipelineShape { ranks: p, microbatches: m, .. } = shape;
        let mut lists = ActionLists::default();
        for rank in 0..p {
            let mut phases =
                Phases::new([Side { stage: rank, first: 0 }, Side { stage: 2 * p - 1 - rank, first: 0 }]);
            phases.all(p, rank, m);
            lists.ranks.push(phases.actions);
            lists.joint.push(phases.joint);
        }
        lists
    }

    /// (p − 1) (F&B + B − 3 W) / 2 over m F&B for F = I = W and a joint pass F&B that takes F + B: (p − 1) / (3 m).
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / (3.0 * shape.microbatches as f64)
    }
}
