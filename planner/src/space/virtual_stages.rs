//! Stages on each pipeline rank.

use super::dimension::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::plan::pipeline_allowed;

/// For each size of the largest stage the smallest number, since more stages of that size only leave more of them partly
/// empty; as far as the schedule exists with them. A stage's size is counted in blocks; and, where there is a block for each stage,
/// also with the head, which takes the place of as many blocks as have its products.
pub(super) struct VirtualStages;

impl Dimension for VirtualStages {
    fn key(&self) -> &'static str {
        "virtual-stages"
    }

    fn summary(&self) -> &'static str {
        "stages on each pipeline rank"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let model = &given.question.model;
        let (layers, pipeline) = (model.layers(), draft.mesh.pipeline);
        let with_head = layers as f64 + model.head_in_blocks(given.question.job.sequence);
        let of_blocks = |stages: usize| layers.div_ceil(pipeline * stages);
        let of_all = |stages: usize| (with_head / (pipeline * stages) as f64).ceil() as usize;
        let counts = match given.numbers() {
            Some(pinned) => pinned,
            None => {
                // Embedding and head may have stages of their own.
                let most = ((layers + 2) / pipeline).max(1);
                let is_smaller = |v: usize| of_blocks(v) < of_blocks(v - 1) || of_all(v) < of_all(v - 1);
                (1..=most).filter(|v| *v <= 2 || is_smaller(*v)).collect()
            }
        };
        let options = counts.into_iter().map(|virtual_stages| Candidate { virtual_stages, ..*draft });
        let exists = |option: &Candidate| {
            let shape = option.shape(given.question.job.global_batch);
            let stages = pipeline.saturating_mul(option.virtual_stages);
            option.schedule().check(shape).is_ok() && pipeline_allowed(model, stages).is_ok()
        };
        // Of two schedules with the same passes one is enough, where both may be taken.
        let repeats = |option: &Candidate| {
            let other = option.schedule().same_as(option.shape(given.question.job.global_batch));
            other.is_some_and(|other| given.tries("schedule", other))
        };
        options.filter(|option| exists(option) && !repeats(option)).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.virtual_stages.to_string()
    }
}
