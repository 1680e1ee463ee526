//! The ring: every rank sends to the next one.

use super::pipeline::{Lane, pipeline};
use super::steps::{Chunks, Effect, Phase, Transfer};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// Each of p ranks passes a p-th of the tensor on in each step. A broadcast or a reduce goes along a chain, pipelined.
///
/// Reduce-scatter and all-gather: p − 1 steps, (p − 1)/p · n sent by each rank. All-reduce: one after the other.
/// Broadcast and reduce: p − 2 + m steps for m pieces, n sent by each rank but the last.
/// Source: Patarasuk & Yuan 2009, J. Parallel Distrib. Comput. 69(2), 117–124; NCCL src/device/all_reduce.h,
/// broadcast.h and reduce.h (ring).
#[derive(Debug, Clone, Copy)]
pub struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let ring = Rings::flat(layout);
        let (chunks, phases) = match kind {
            CollectiveKind::AllReduce => (layout.ranks(), vec![ring.reduce_scatter(), ring.all_gather()]),
            CollectiveKind::ReduceScatter => (layout.ranks(), vec![ring.reduce_scatter()]),
            CollectiveKind::AllGather => (layout.ranks(), vec![ring.all_gather()]),
            CollectiveKind::Broadcast | CollectiveKind::Reduce => {
                (layout.pieces(), pipeline(chain(kind, layout.ranks()), layout.pieces()))
            }
            _ => return None,
        };
        Some(Steps::new(kind, layout, chunks, phases))
    }
}

/// From rank 0 to the last for a broadcast, and back for a reduce.
fn chain(kind: CollectiveKind, ranks: usize) -> Vec<Lane> {
    let hop = |start| {
        let (from, to, effect) = match kind {
            CollectiveKind::Broadcast => (start, start + 1, Effect::Copy),
            _ => (ranks - 1 - start, ranks - 2 - start, Effect::Add),
        };
        Lane { from, to, parts: Chunks::one(0), effect, start }
    };
    (0..ranks - 1).map(hop).collect()
}

/// Several rings that run at once, each over some ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rings {
    layout: Layout,
    rings: usize,
    size: usize,
    /// The rank at a position of a ring.
    rank: fn(Layout, ring: usize, position: usize) -> usize,
    /// The part of the tensor that belongs to a position of a ring; there are p chunks in all.
    part: fn(Layout, ring: usize, position: usize) -> Chunks,
}

impl Rings {
    /// One ring over all ranks; chunk r belongs to rank r.
    pub fn flat(layout: Layout) -> Self {
        Self {
            layout,
            rings: 1,
            size: layout.ranks(),
            rank: |_, _, rank| rank,
            part: |_, _, rank| Chunks::one(rank),
        }
    }

    /// One ring in each node; to a place in the node belong the chunks of the ranks at that place of all nodes.
    pub fn in_nodes(layout: Layout) -> Self {
        Self {
            layout,
            rings: layout.nodes(),
            size: layout.per_node(),
            rank: |layout, node, place| layout.rank(node, place),
            part: |layout, _, place| Chunks {
                first: place,
                count: layout.nodes(),
                stride: layout.per_node(),
            },
        }
    }

    /// One ring over the ranks at each place of their nodes; chunk r belongs to rank r.
    pub fn between_nodes(layout: Layout) -> Self {
        Self {
            layout,
            rings: layout.per_node(),
            size: layout.nodes(),
            rank: |layout, place, node| layout.rank(node, place),
            part: |layout, place, node| Chunks::one(layout.rank(node, place)),
        }
    }

    /// After size − 1 steps each position has the sum of its part.
    ///
    /// In step t position i sends the part of position i − 1 − t, so that each part starts behind its owner and
    /// goes once around.
    pub fn reduce_scatter(self) -> Phase {
        self.phase(|position, step, size| (position + 2 * size - 1 - step) % size, Effect::Add)
    }

    /// After size − 1 steps each position has all parts that any position began with.
    ///
    /// In step t position i sends the part of position i − t, which it received in the step before.
    pub fn all_gather(self) -> Phase {
        self.phase(|position, step, size| (position + size - step) % size, Effect::Copy)
    }

    fn phase(self, owner: fn(position: usize, step: usize, size: usize) -> usize, effect: Effect) -> Phase {
        Phase::new(self.size - 1, move |step| {
            let transfer = |ring, position| {
                let rank = |position| (self.rank)(self.layout, ring, position % self.size);
                let part = (self.part)(self.layout, ring, owner(position, step, self.size));
                Transfer::new(rank(position), rank(position + 1), part, effect)
            };
            (0..self.rings).flat_map(|ring| (0..self.size).map(move |i| transfer(ring, i))).collect()
        })
    }
}
