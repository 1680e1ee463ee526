//! Ranks that share each sequence.

use super::{Dimension, Given, Values, divisors};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;

/// The fewest tokens of a sequence that are worth a rank of their own: fewer do not fill its kernels.
const FEWEST_TOKENS: usize = 2048;

/// As many as leave each rank enough tokens, beyond the core of the space.
pub(super) struct Context;

impl Dimension for Context {
    fn key(&self) -> &'static str {
        "context"
    }

    fn summary(&self) -> &'static str {
        "GPUs that share each sequence"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let sequence = given.question.job.sequence;
        let pinned = given.numbers();
        let tried = |context: &usize| match &pinned {
            Some(pinned) => pinned.contains(context),
            None if given.is_core() => *context == 1,
            None => *context == 1 || sequence.is_multiple_of(*context) && sequence / context >= FEWEST_TOKENS,
        };
        let degrees = divisors(given.question.cluster.gpus() / draft.mesh.tensor).into_iter().filter(tried);
        degrees.map(|context| Candidate { mesh: Mesh { context, ..draft.mesh }, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.context.to_string()
    }
}
