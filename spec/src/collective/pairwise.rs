//! Everyone exchanges with one other at a time.

use super::steps::{Chunks, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Effect, Layout, Steps};

/// All-to-all in p − 1 steps: in step s each rank sends to the s-th one after it. Each rank sends (p − 1)/p · n.
///
/// Source: Thakur, Rabenseifner & Gropp 2005, Int. J. High Perform. Comput. Appl. 19(1), 49–66.
#[derive(Debug, Clone, Copy)]
pub struct Pairwise;

impl Algorithm for Pairwise {
    fn name(&self) -> &'static str {
        "pairwise"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let CollectiveKind::AllToAll = kind else { return None };
        let ranks = layout.ranks();
        let message =
            move |from, to| vec![Transfer::new(from, to, Chunks::one(from * ranks + to), Effect::Copy)];
        Some(Steps::new(kind, layout, ranks, exchanges(ranks, message).collect()))
    }
}

/// The size − 1 steps in which everyone of 0..size sends to the first, second, … after it, around the end.
pub(super) fn exchanges(
    size: usize,
    messages: impl Fn(usize, usize) -> Vec<Transfer> + Copy + Send + Sync + 'static,
) -> impl Iterator<Item = Phase> {
    (1..size).map(move |distance| {
        Phase::new(1, move |_| (0..size).flat_map(|from| messages(from, (from + distance) % size)).collect())
    })
}
