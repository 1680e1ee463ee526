//! Neighbouring data ranks that divide the state among them, in hybrid sharding.

use super::dimension::{Dimension, Given, Values, divisors, with};
use crate::candidate::Candidate;
use trainwright_spec::data::{DataChoices, DataOptions, data_scheme};

/// Those of a node, where the scheme asks for it.
pub(super) struct HybridShard;

impl Dimension for HybridShard {
    fn key(&self) -> &'static str {
        "shard"
    }

    fn summary(&self) -> &'static str {
        "data ranks that divide the state among them, in hybrid sharding"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let Ok(scheme) = data_scheme(draft.data_sharding) else { return Vec::new() };
        let takes = |shard| scheme.check(&DataChoices { options: DataOptions::default(), shard }).is_ok();
        if takes(None) {
            return vec![*draft];
        }
        let copies = draft.mesh.weight_copies();
        let in_node = given.question.cluster.node.gpus.value / draft.mesh.tensor;
        let pinned = given.numbers();
        let tried = |shard: &usize| match &pinned {
            Some(pinned) => pinned.contains(shard),
            None => *shard == in_node && *shard > 1 && *shard < copies,
        };
        let sizes = divisors(copies).into_iter().filter(tried).map(Some).filter(|shard| takes(*shard));
        sizes.map(|shard| with(draft, |option| option.mesh.shard = shard)).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.shard().to_string()
    }
}
