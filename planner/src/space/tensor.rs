//! Ranks that share each layer.

use super::{Dimension, Given, Values, divisors};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;

/// A tensor group lies in one node or fills whole ones: where some groups straddle a node's end, all wait for them.
pub(super) struct Tensor;

impl Dimension for Tensor {
    fn key(&self) -> &'static str {
        "tensor"
    }

    fn summary(&self) -> &'static str {
        "GPUs that share each layer"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let node = given.question.cluster.node.gpus.value;
        let aligned = |tensor: usize| node.is_multiple_of(tensor) || tensor.is_multiple_of(node);
        let pinned = given.numbers();
        let tried = |tensor: &usize| match &pinned {
            Some(pinned) => pinned.contains(tensor),
            None => aligned(*tensor) && *tensor <= given.question.job.sequence,
        };
        let degrees = divisors(given.question.cluster.gpus()).into_iter().filter(tried);
        degrees.map(|tensor| Candidate { mesh: Mesh { tensor, ..draft.mesh }, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.tensor.to_string()
    }
}
