//! The number format of matrix products, if it is left open.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::precision::Precision;

/// That of the job, unless pins name several.
pub(super) struct NumberFormat;

impl Dimension for NumberFormat {
    fn key(&self) -> &'static str {
        "precision"
    }

    fn summary(&self) -> &'static str {
        "number format of the matrix products; the job's if none is pinned"
    }

    fn values(&self) -> Values {
        Values::Names(Precision::ALL.iter().map(|precision| precision.name()).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let pinned = |precision: &Precision| match &given.pinned {
            Some(pinned) => pinned.iter().any(|pin| pin == precision.name()),
            None => *precision == given.question.job.precision,
        };
        let known = Precision::ALL.into_iter().filter(pinned);
        known.map(|precision| Candidate { precision, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.precision.name().into()
    }
}
