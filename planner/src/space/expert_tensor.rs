//! Ranks that share each expert.

use super::expert::experts;
use super::{Dimension, Given, Values, divisors};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;

/// Those of the tensor axis, or each expert on one rank.
pub(super) struct ExpertTensor;

impl Dimension for ExpertTensor {
    fn key(&self) -> &'static str {
        "expert-tensor"
    }

    fn summary(&self) -> &'static str {
        "GPUs that share each expert"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let Mesh { tensor, expert, .. } = draft.mesh;
        if experts(&given.question.model).is_none() {
            return vec![*draft];
        }
        let degrees = match given.numbers() {
            Some(pinned) => {
                divisors(draft.mesh.stage_ranks()).into_iter().filter(|own| pinned.contains(own)).collect()
            }
            None if tensor > 1 && draft.sequence_parallel => vec![1, tensor],
            None => vec![tensor],
        };
        let fits = |own: &usize| draft.mesh.stage_ranks().is_multiple_of(own * expert);
        let degrees = degrees.into_iter().filter(fits);
        let mesh = |own| Mesh { expert_tensor: (own != tensor).then_some(own), ..draft.mesh };
        degrees.map(|own| Candidate { mesh: mesh(own), ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.expert_tensor().to_string()
    }
}
