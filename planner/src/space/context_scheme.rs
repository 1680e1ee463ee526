//! How the ranks of the context axis share attention.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::context::CONTEXT_SCHEMES;

/// Schemes of two levels. Without an inner axis each does what a scheme of one level does.
const HYBRIDS: [&str; 2] = ["hybrid", "hybrid-all-gather"];

/// Every scheme, where there is a context axis; those of two levels where it has two.
pub(super) struct Scheme;

impl Dimension for Scheme {
    fn key(&self) -> &'static str {
        "context-scheme"
    }

    fn summary(&self) -> &'static str {
        "how they share attention"
    }

    fn values(&self) -> Values {
        Values::Names(CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let known: Vec<&'static str> = CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()).collect();
        let levels = |name: &&'static str| draft.mesh.context_inner > 1 || !HYBRIDS.contains(name);
        let tried = match draft.mesh.context {
            1 => vec![draft.context_scheme],
            _ => known.iter().copied().filter(levels).collect(),
        };
        let names = given.names(&known, &tried).into_iter();
        names.map(|context_scheme| Candidate { context_scheme, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.context_scheme.into()
    }
}
