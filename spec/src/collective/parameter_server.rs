//! One rank sums for all: how data parallelism was done before rings.

use super::steps::{Chunks, Effect, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// All-reduce over rank 0: everyone sends it the tensor, and it sends everyone the sum.
///
/// Two steps; (p − 1) n into the server and as much out of it, p n where the server's part crosses a link as well.
/// Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI, with one server.
#[derive(Debug, Clone, Copy)]
pub struct ParameterServer;

const SERVER: usize = 0;

impl Algorithm for ParameterServer {
    fn name(&self) -> &'static str {
        "parameter-server"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let CollectiveKind::AllReduce = kind else { return None };
        let ranks = layout.ranks();
        let phase = |message: fn(usize) -> Transfer| {
            Phase::new((ranks - 1).min(1), move |_| (1..ranks).map(message).collect())
        };
        let push = phase(|rank| Transfer::new(rank, SERVER, Chunks::one(0), Effect::Add));
        let pull = phase(|rank| Transfer::new(SERVER, rank, Chunks::one(0), Effect::Copy));
        Some(Steps::new(kind, layout, 1, vec![push, pull]))
    }
}
