//! Which axis lies on which level of the network.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::mesh::{Mesh, RankOrder};

/// Data ranks nearer to each other than pipeline ranks, as most software has it; in the whole space the other way round too,
/// where there are several of both on several nodes, and either a stage's neighbours fill nodes or a node holds whole
/// pipelines: else each data rank does something else, and all of them would have to be simulated.
pub(super) struct Order;

impl Dimension for Order {
    fn key(&self) -> &'static str {
        "rank-order"
    }

    fn summary(&self) -> &'static str {
        "axes in the order in which ranks are numbered, neighbours first"
    }

    fn values(&self) -> Values {
        Values::Names(RankOrder::ALL.iter().map(|order| order.name()).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let Mesh { tensor, context, pipeline, data, .. } = draft.mesh;
        let (nodes, gpus) = (given.question.cluster.nodes, given.question.cluster.node.gpus.value);
        let differ = pipeline > 1 && data > 1 && nodes > 1;
        let block = tensor * context;
        let alike = block.is_multiple_of(gpus) || gpus.is_multiple_of(block * pipeline);
        let known = RankOrder::ALL.map(RankOrder::name);
        let tried = if given.is_whole() && differ && alike { &known[..] } else { &known[..1] };
        let mut names = given.names(&known, tried);
        if !differ {
            names.truncate(1);
        }
        let orders = RankOrder::ALL.into_iter().filter(|order| names.contains(&order.name()));
        orders.map(|order| Candidate { mesh: Mesh { order, ..draft.mesh }, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.mesh.order.name().into()
    }
}
