//! Every message goes straight to its receiver, all in one step.

use super::steps::{Chunks, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Effect, Layout, Steps};

/// All-to-all with p (p − 1) messages at once, as NCCL does it, and the send-receive of nccl-tests.
///
/// In an all-to-all each rank sends (p − 1)/p · n, in a send-receive n.
/// Source: NCCL's documentation, "Point-to-point communication"; nccl-tests src/alltoall.cu and src/sendrecv.cu.
#[derive(Debug, Clone, Copy)]
pub struct Direct;

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let ranks = layout.ranks();
        let steps = (ranks - 1).min(1);
        let message = |from, to, chunk| Transfer::new(from, to, Chunks::one(chunk), Effect::Copy);
        let (chunks, phase) = match kind {
            CollectiveKind::AllToAll => {
                let from_one = move |from| {
                    let others = (0..ranks).filter(move |to| *to != from);
                    others.map(move |to| message(from, to, from * ranks + to))
                };
                (ranks, Phase::new(steps, move |_| (0..ranks).flat_map(from_one).collect()))
            }
            CollectiveKind::SendReceive => {
                let to_next = move |rank| message(rank, (rank + 1) % ranks, rank);
                (1, Phase::new(steps, move |_| (0..ranks).map(to_next).collect()))
            }
            _ => return None,
        };
        Some(Steps::new(kind, layout, chunks, vec![phase]))
    }
}
