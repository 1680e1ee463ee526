//! Sequences in a microbatch.

use super::{Dimension, Given, Values, divisors};
use crate::candidate::Candidate;

/// The most tokens of a microbatch that are tried: more than fill any GPU's kernels.
const MOST_TOKENS: usize = 1 << 18;

/// Every division of a data rank's sequences.
pub(super) struct MicroBatch;

impl Dimension for MicroBatch {
    fn key(&self) -> &'static str {
        "micro-batch"
    }

    fn summary(&self) -> &'static str {
        "sequences in a microbatch"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let job = &given.question.job;
        let pinned = given.numbers();
        let tried = |micro_batch: &usize| match &pinned {
            Some(pinned) => pinned.contains(micro_batch),
            None => *micro_batch == 1 || micro_batch.saturating_mul(job.sequence) <= MOST_TOKENS,
        };
        let sizes = divisors(job.global_batch / draft.mesh.data).into_iter().filter(tried);
        sizes.map(|micro_batch| Candidate { micro_batch, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.micro_batch.to_string()
    }
}
