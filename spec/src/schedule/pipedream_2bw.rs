//! PipeDream-2BW: 1F1B that never drains.

use super::one_f_one_b::OneForwardOneBackward;
use super::{ActionLists, PipelineShape, Schedule};

/// 1F1B without the flush at the end of a step: microbatches of the next step follow at once, with weights one update
/// old. Two versions of the weights are enough if a step has at least p microbatches.
pub struct PipeDream2Bw;

impl Schedule for PipeDream2Bw {
    fn name(&self) -> &str {
        "pipedream-2bw"
    }

    fn summary(&self) -> &str {
        "1F1B without flushes: no bubble, weights one update late in two versions"
    }

    fn bubble(&self) -> &str {
        "0"
    }

    fn source(&self) -> &str {
        "Narayanan et al. 2021, arXiv 2006.09503"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::one_stage_per_rank(self.name(), shape)?;
        let PipelineShape { ranks, microbatches, .. } = shape;
        match microbatches >= ranks {
            true => Ok(()),
            false => Err(format!(
                "schedule `pipedream-2bw` needs as many microbatches as its {ranks} pipeline ranks, not \
                 {microbatches}: two versions of the weights would not be enough"
            )),
        }
    }

    fn flushes(&self) -> bool {
        false
    }

    fn weight_versions(&self) -> usize {
        2
    }

    /// Those of a first step; n steps are those of n · m microbatches.
    fn lists(&self, shape: PipelineShape) -> ActionLists {
        OneForwardOneBackward.lists(shape)
    }

    /// 0: between two updates each rank works all the time.
    fn bubble_over_work(&self, _: PipelineShape) -> f64 {
        0.0
    }
}
