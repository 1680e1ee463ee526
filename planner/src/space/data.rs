//! Copies of the model, each with its part of the batch.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;

/// What the other axes leave of the GPUs, if it divides the batch.
pub(super) struct Data;

impl Dimension for Data {
    fn key(&self) -> &'static str {
        "data"
    }

    fn summary(&self) -> &'static str {
        "copies of the model, each with its part of the batch"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let data = given.question.cluster.gpus() / draft.mesh.ranks();
        let option = Candidate { mesh: Mesh { data, ..draft.mesh }, ..*draft };
        if given.question.job.global_batch.is_multiple_of(data) { vec![option] } else { Vec::new() }
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.data.to_string()
    }
}
