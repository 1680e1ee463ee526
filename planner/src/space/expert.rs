//! Ranks that share the experts of a layer.

use super::{Dimension, Given, Values, divisors};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::{Mlp, Model};

/// Every division of the experts over the ranks of a stage.
pub(super) struct Expert;

/// The fewest experts of a block that has some; none in a dense model.
pub(super) fn experts(model: &Model) -> Option<usize> {
    let counts = model.blocks.iter().filter_map(|run| match &run.block.mlp {
        Mlp::Experts(experts) => Some(experts.count),
        Mlp::Dense(_) => None,
    });
    counts.min()
}

impl Dimension for Expert {
    fn key(&self) -> &'static str {
        "expert"
    }

    fn summary(&self) -> &'static str {
        "GPUs that share the experts of a layer"
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let pinned = given.numbers();
        let ranks = draft.mesh.stage_ranks();
        let tried = |expert: &usize| {
            let allowed = match &pinned {
                Some(pinned) => pinned.contains(expert),
                None => *expert == 1 || !given.is_core(),
            };
            allowed && ranks.is_multiple_of(*expert)
        };
        let degrees = divisors(experts(&given.question.model).unwrap_or(1)).into_iter().filter(tried);
        degrees.map(|expert| Candidate { mesh: Mesh { expert, ..draft.mesh }, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.expert.to_string()
    }
}
