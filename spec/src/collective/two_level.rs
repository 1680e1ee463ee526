//! First inside the nodes, then between them: each rank exchanges with the ranks at the same place of other nodes.

use super::pairwise::exchanges;
use super::ring::Rings;
use super::steps::{Chunks, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Effect, Layout, Steps};

/// Hierarchical collectives over N nodes of k ranks.
///
/// - Reduce-scatter: a ring in each node leaves each rank a k-th of the tensor, then k rings between nodes: k + N −
///   2 steps; each rank sends (k − 1)/k · n inside its node and (N − 1)/p · n out of it. All-gather: the reverse.
///   All-reduce: one after the other.
/// - All-to-all: in k − 1 steps each rank collects what its node has for the ranks at the same place of other nodes, and
///   sends it there in N − 1 steps: N times larger messages inside, k times larger ones between.
///
/// Source: Thakur, Rabenseifner & Gropp 2005 for the decomposition; Mikami et al. 2018, arXiv 1811.05233, for
/// all-reduces so; DeepSpeed-MoE, arXiv 2201.05596, for the all-to-all.
#[derive(Debug, Clone, Copy)]
pub struct TwoLevel;

impl Algorithm for TwoLevel {
    fn name(&self) -> &'static str {
        "two-level"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        if layout.nodes() == 1 || layout.per_node() == 1 {
            return None;
        }
        let (inside, between) = (Rings::in_nodes(layout), Rings::between_nodes(layout));
        let phases = match kind {
            CollectiveKind::AllReduce => vec![
                inside.reduce_scatter(),
                between.reduce_scatter(),
                between.all_gather(),
                inside.all_gather(),
            ],
            CollectiveKind::ReduceScatter => vec![inside.reduce_scatter(), between.reduce_scatter()],
            CollectiveKind::AllGather => vec![between.all_gather(), inside.all_gather()],
            CollectiveKind::AllToAll => collect_inside(layout).chain(deliver_between(layout)).collect(),
            _ => return None,
        };
        Some(Steps::new(kind, layout, layout.ranks(), phases))
    }
}

/// Each rank hands everything that it has for one place, on any node, to the rank at that place of its node.
fn collect_inside(layout: Layout) -> impl Iterator<Item = Phase> {
    let (p, k, n) = (layout.ranks(), layout.per_node(), layout.nodes());
    exchanges(k, move |from, to| {
        let transfer = move |node| {
            let (sender, receiver) = (layout.rank(node, from), layout.rank(node, to));
            let chunks = Chunks { first: sender * p + to, count: n, stride: k };
            Transfer::new(sender, receiver, chunks, Effect::Copy)
        };
        (0..n).map(transfer).collect()
    })
}

/// Each rank hands all that its node has for one rank, at the same place of another node, to that rank.
fn deliver_between(layout: Layout) -> impl Iterator<Item = Phase> {
    let (p, k, n) = (layout.ranks(), layout.per_node(), layout.nodes());
    exchanges(n, move |from, to| {
        let transfer = move |place| {
            let (sender, receiver) = (layout.rank(from, place), layout.rank(to, place));
            let chunks = Chunks { first: layout.rank(from, 0) * p + receiver, count: k, stride: p };
            Transfer::new(sender, receiver, chunks, Effect::Copy)
        };
        (0..k).map(transfer).collect()
    })
}
