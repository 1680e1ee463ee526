//! How tokens come to their experts.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::experts::{ByNode, DISPATCHERS, Dispatcher};
use trainwright_spec::mesh::Mesh;

/// Every dispatcher where experts lie on several ranks; the one that tells nodes apart where they are on several nodes.
pub(super) struct Dispatch;

impl Dimension for Dispatch {
    fn key(&self) -> &'static str {
        "dispatcher"
    }

    fn summary(&self) -> &'static str {
        "how tokens come to their experts"
    }

    fn values(&self) -> Values {
        Values::Names(DISPATCHERS.iter().map(|dispatcher| dispatcher.name()).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let known: Vec<&'static str> = DISPATCHERS.iter().map(|dispatcher| dispatcher.name()).collect();
        let mesh = draft.mesh;
        let tried = if mesh.expert > 1 { known.clone() } else { vec![draft.dispatcher] };
        let in_node = (given.question.cluster.node.gpus.value / mesh.expert_tensor()).max(1);
        let option = |dispatcher: &'static str| {
            let apart = dispatcher == ByNode.name();
            let expert_inner = if apart { in_node } else { 1 };
            let possible = !apart || mesh.expert > in_node && mesh.expert.is_multiple_of(in_node);
            possible.then_some(Candidate { mesh: Mesh { expert_inner, ..mesh }, dispatcher, ..*draft })
        };
        given.names(&known, &tried).into_iter().filter_map(option).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.dispatcher.into()
    }
}
