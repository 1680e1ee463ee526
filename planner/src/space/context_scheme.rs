//! How the ranks of the context axis share attention.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::context::CONTEXT_SCHEMES;

/// Every scheme, where there is a context axis.
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
        let tried = if draft.mesh.context == 1 { vec![draft.context_scheme] } else { known.clone() };
        let names = given.names(&known, &tried).into_iter();
        names.map(|context_scheme| Candidate { context_scheme, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.context_scheme.into()
    }
}
