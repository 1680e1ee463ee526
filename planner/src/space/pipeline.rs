//! Ranks that hold successive layers.

use super::{Dimension, Given, Values, divisors};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::pipeline_allowed;

/// As many as the model has blocks for.
pub(super) struct Pipeline;

impl Dimension for Pipeline {
    fn key(&self) -> &'static str {
        "pipeline"
    }

    fn summary(&self) -> &'static str {
        "pipeline ranks, which hold successive layers"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let pinned = given.numbers();
        let tried = |pipeline: &usize| {
            pinned.as_ref().is_none_or(|pinned| pinned.contains(pipeline))
                && pipeline_allowed(&given.question.model, *pipeline).is_ok()
        };
        let left = given.question.cluster.gpus() / draft.mesh.stage_ranks();
        let degrees = divisors(left).into_iter().filter(tried);
        degrees.map(|pipeline| Candidate { mesh: Mesh { pipeline, ..draft.mesh }, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.pipeline.to_string()
    }
}
