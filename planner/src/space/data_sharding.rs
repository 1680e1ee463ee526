//! What the ranks with the same weights divide among them.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::data::{DATA_SCHEMES, Exchange};

/// Every scheme that the software has, but for servers and fusion buffers, which ranks with the same network never need;
/// in the core of the space nothing or the optimizer.
pub(super) struct DataSharding;

impl Dimension for DataSharding {
    fn key(&self) -> &'static str {
        "data-sharding"
    }

    fn summary(&self) -> &'static str {
        "what data-parallel ranks split"
    }

    fn values(&self) -> Values {
        Values::Names(DATA_SCHEMES.iter().map(|scheme| scheme.name()).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let known: Vec<&'static str> = DATA_SCHEMES.iter().map(|scheme| scheme.name()).collect();
        let usual = DATA_SCHEMES
            .iter()
            .filter(|scheme| scheme.fusion().is_none() && scheme.exchange() == Exchange::Collectives);
        let core = |name: &&'static str| !given.is_core() || ["none", "zero1"].contains(name);
        let tried: Vec<&'static str> = usual.map(|scheme| scheme.name()).filter(core).collect();
        let several = draft.mesh.weight_copies() > 1;
        let names = given.names(&known, &tried).into_iter();
        let suits =
            |name: &&'static str| given.question.stack.has_data_scheme(name) && (several || *name == "none");
        names.filter(suits).map(|data_sharding| Candidate { data_sharding, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.data_sharding.into()
    }
}
