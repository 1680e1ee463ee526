//! Which axis lies on which level of the network.

use super::dimension::{Dimension, Given, Values, with};
use crate::candidate::Candidate;
use trainwright_spec::mesh::{Mesh, RankOrder};

/// Data ranks nearer to each other than pipeline ranks, as most software has it; in the whole space the other way round too,
/// where there are several of both on several nodes, and either a stage's neighbours fill nodes or a node holds whole
/// pipelines: else each data rank does something else, and all of them would have to be simulated.
pub(super) struct OrderOfRanks;

impl Dimension for OrderOfRanks {
    fn key(&self) -> &'static str {
        "rank-order"
    }

    fn summary(&self) -> &'static str {
        "axes in the order in which ranks are numbered, neighbours first"
    }

    fn values(&self) -> Values {
        Values::Names(RankOrder::ALL.map(RankOrder::name).to_vec())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let Mesh { tensor, context, pipeline, data, .. } = draft.mesh;
        let (nodes, gpus) = (given.question.cluster.nodes, given.question.cluster.node.gpus.value);
        let differ = pipeline > 1 && data > 1 && nodes > 1;
        let block = tensor * context;
        let alike = block.is_multiple_of(gpus) || gpus.is_multiple_of(block * pipeline);
        let both = given.is_whole() && differ && alike;
        let tried = |name: &str| both || name == RankOrder::ALL[0].name();
        let mut names = given.names(&RankOrder::ALL.map(RankOrder::name), tried);
        if !differ {
            names.truncate(1);
        }
        let orders = RankOrder::ALL.into_iter().filter(|order| names.contains(&order.name()));
        orders.map(|order| with(draft, |option| option.mesh.order = order)).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.order.name().into()
    }
}
