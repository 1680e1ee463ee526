//! Neighbouring context ranks that exchange heads, in hybrids.

use super::{Dimension, Given, Values, divisors};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;

/// Every division of the context axis.
pub(super) struct ContextInner;

impl Dimension for ContextInner {
    fn key(&self) -> &'static str {
        "context-inner"
    }

    fn summary(&self) -> &'static str {
        "neighbouring ones of them that exchange heads, in hybrids"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let context = draft.mesh.context;
        let pinned = given.numbers();
        let tried = |inner: &usize| match &pinned {
            Some(pinned) => pinned.contains(inner),
            // All of them exchanging heads is a scheme of its own.
            None => *inner < context || context == 1,
        };
        let degrees = divisors(context).into_iter().filter(tried);
        degrees
            .map(|context_inner| Candidate { mesh: Mesh { context_inner, ..draft.mesh }, ..*draft })
            .collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.context_inner.to_string()
    }
}
