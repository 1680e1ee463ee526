//! Collectives that the switches inside a node add and copy for (NVLink SHARP, which NCCL calls NVLS).

use super::double_tree::{Half, round_trip};
use super::pipeline::{Lane, pipeline};
use super::steps::{Chunks, Effect, Switch};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// The switches of a node add and copy, m pieces in turn.
///
/// All-reduce: each rank sends the tensor to its node's switch and gets a k-th of the sum, k ranks in a node; it writes
/// that back, and the switch copies it to all. (1 + 1/k) n in each direction, which tends to half of a ring's. Over
/// several nodes (NCCL's NVLSTree) the ranks at each place of their nodes first sum their parts over the double
/// binary tree: up to 2 n/k more, out of the node.
///
/// Reduce-scatter, all-gather, broadcast and reduce, in one node: n in the one direction and n/p, n or nothing in
/// the other. The switch copies to all alike, so that a rank gets its part of an all-gather as well.
/// Source: NCCL src/device/all_reduce.h, all_gather.h and reduce_scatter.h (NVLS, NVLSTree).
#[derive(Debug, Clone, Copy)]
pub struct InSwitch;

impl Algorithm for InSwitch {
    fn name(&self) -> &'static str {
        "in-switch"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        if layout.per_node() == 1 {
            return None;
        }
        let CollectiveKind::AllReduce = kind else { return in_one_node(kind, layout) };
        let parts = Half::BOTH.len();
        let mut lanes = sums_to_ranks(layout, parts);
        for place in 0..layout.per_node() {
            for (index, half) in Half::BOTH.into_iter().enumerate() {
                lanes.extend(half.sum_over_nodes(layout, place, place * parts + index, SUMMED));
            }
        }
        lanes.extend(copies_to_all(layout, parts, SUMMED + round_trip(layout)));
        let chunks = layout.per_node() * parts * layout.pieces();
        let steps = Steps::new(kind, layout, chunks, pipeline(lanes, layout.pieces()));
        Some(steps.with_switches((0..layout.nodes()).map(Switch::Node)))
    }
}

/// The step after which each rank has the first piece of its part of its node's sum.
pub(super) const SUMMED: usize = 2;

/// All ranks send all to the switch of their node, which gives the rank at each place `parts` parts of the sum.
pub(super) fn sums_to_ranks(layout: Layout, parts: usize) -> Vec<Lane> {
    let all = Chunks::range(0, layout.per_node() * parts);
    each_rank(layout, |rank, place, switch| {
        let parts_of_rank = Chunks::range(place * parts, parts);
        [
            Lane { from: rank, to: switch, parts: all, effect: Effect::Add, start: 0 },
            Lane { from: switch, to: rank, parts: parts_of_rank, effect: Effect::Copy, start: 1 },
        ]
    })
}

/// All ranks send their parts to the switch of their node, which copies all to all.
pub(super) fn copies_to_all(layout: Layout, parts: usize, start: usize) -> Vec<Lane> {
    let all = Chunks::range(0, layout.per_node() * parts);
    each_rank(layout, |rank, place, switch| {
        let parts_of_rank = Chunks::range(place * parts, parts);
        [
            Lane { from: rank, to: switch, parts: parts_of_rank, effect: Effect::Copy, start },
            Lane { from: switch, to: rank, parts: all, effect: Effect::Copy, start: start + 1 },
        ]
    })
}

fn each_rank(layout: Layout, lanes: impl Fn(usize, usize, usize) -> [Lane; 2]) -> Vec<Lane> {
    let places = (0..layout.nodes()).flat_map(|node| (0..layout.per_node()).map(move |place| (node, place)));
    places.flat_map(|(node, place)| lanes(layout.rank(node, place), place, layout.ranks() + node)).collect()
}

/// One hop to the switch and one from it.
fn in_one_node(kind: CollectiveKind, layout: Layout) -> Option<Steps> {
    let (ranks, 1) = (layout.ranks(), layout.nodes()) else { return None };
    let parts = match kind {
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter => ranks,
        _ => 1,
    };
    let all = Chunks::range(0, parts);
    let up = |rank, parts, effect| Lane { from: rank, to: ranks, parts, effect, start: 0 };
    let down = |rank, parts| Lane { from: ranks, to: rank, parts, effect: Effect::Copy, start: 1 };
    let lanes: Vec<Lane> = match kind {
        CollectiveKind::ReduceScatter => {
            (0..ranks).flat_map(|rank| [up(rank, all, Effect::Add), down(rank, Chunks::one(rank))]).collect()
        }
        CollectiveKind::AllGather => {
            (0..ranks).flat_map(|rank| [up(rank, Chunks::one(rank), Effect::Copy), down(rank, all)]).collect()
        }
        CollectiveKind::Broadcast => {
            [up(0, all, Effect::Copy)].into_iter().chain((1..ranks).map(|rank| down(rank, all))).collect()
        }
        CollectiveKind::Reduce => {
            (0..ranks).map(|rank| up(rank, all, Effect::Add)).chain([down(0, all)]).collect()
        }
        _ => return None,
    };
    let steps = Steps::new(kind, layout, parts * layout.pieces(), pipeline(lanes, layout.pieces()));
    Some(steps.with_switches([Switch::Node(0)]))
}
