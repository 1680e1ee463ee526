//! Whether what lies between tensor-parallel layers is split along the sequence.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;

/// Where there is a tensor axis without a grid, with and without.
pub(super) struct SequenceParallel;

impl Dimension for SequenceParallel {
    fn key(&self) -> &'static str {
        "sequence-parallel"
    }

    fn summary(&self) -> &'static str {
        "whether norms and dropouts are split along the sequence"
    }

    fn values(&self) -> Values {
        Values::Names(vec!["true", "false"])
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let stack = &given.question.stack;
        let possible = draft.mesh.tensor > 1 && draft.mesh.tensor_rows == 1 && stack.sequence_parallel;
        let options = [true, false].into_iter().filter(|on| possible || !on);
        options.map(|sequence_parallel| Candidate { sequence_parallel, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.sequence_parallel.to_string()
    }
}
