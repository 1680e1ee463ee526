//! Collectives that the switches inside a node add and copy for (NVLink SHARP, which NCCL calls NVLS).

use super::double_tree::{Half, sum_over_nodes};
use super::pipeline::{Lane, pipeline};
use super::steps::{Chunks, Effect, Switch};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// Each rank sends the tensor to its switch once and gets the sum back once, pipelined: n in each direction, half
/// of what a large ring moves.
///
/// Over several nodes (all-reduce only, NCCL's NVLSTree) the switch of a node gives each of its k ranks a k-th of the
/// node's sum; the ranks at each place of their nodes sum theirs over the double binary tree and hand it to the
/// switch, which copies it to all. A rank then sends n + n/k to the switch and up to 2 n/k out of the node.
///
/// Assumes that a switch hands the sum to all ranks itself. With NVLink each part of it goes to one rank, which writes
/// it back to the switch for all: p-ths of the tensor more in each direction in a group of p.
/// Source: NCCL src/device/all_reduce.h (NVLS and NVLSTree); the halving: nccl-tests doc/PERFORMANCE.md.
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
        if layout.nodes() == 1 {
            return in_one_node(kind, layout);
        }
        let CollectiveKind::AllReduce = kind else { return None };
        let halves = 2;
        let mut lanes = sums_to_ranks(layout, halves);
        let mut end = 0;
        for (place, half) in
            (0..layout.per_node()).flat_map(|place| [(place, Half::First), (place, Half::Second)])
        {
            let part = place * halves + half as usize;
            end = sum_over_nodes(
                &mut lanes,
                layout.nodes(),
                half,
                |node| layout.rank(node, place),
                part,
                SUMMED,
            );
        }
        lanes.extend(copies_to_all(layout, halves, end));
        let chunks = layout.per_node() * halves * layout.pieces();
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
        let own = Chunks::range(place * parts, parts);
        [
            Lane { from: rank, to: switch, parts: all, effect: Effect::Add, start: 0 },
            Lane { from: switch, to: rank, parts: own, effect: Effect::Copy, start: 1 },
        ]
    })
}

/// All ranks send their parts to the switch of their node, which copies all to all.
pub(super) fn copies_to_all(layout: Layout, parts: usize, start: usize) -> Vec<Lane> {
    let all = Chunks::range(0, layout.per_node() * parts);
    each_rank(layout, |rank, place, switch| {
        let own = Chunks::range(place * parts, parts);
        [
            Lane { from: rank, to: switch, parts: own, effect: Effect::Copy, start },
            Lane { from: switch, to: rank, parts: all, effect: Effect::Copy, start: start + 1 },
        ]
    })
}

fn each_rank(layout: Layout, lanes: impl Fn(usize, usize, usize) -> [Lane; 2]) -> Vec<Lane> {
    let places = (0..layout.nodes()).flat_map(|node| (0..layout.per_node()).map(move |place| (node, place)));
    places.flat_map(|(node, place)| lanes(layout.rank(node, place), place, layout.ranks() + node)).collect()
}

/// What each rank sends to the switch and gets from it.
fn in_one_node(kind: CollectiveKind, layout: Layout) -> Option<Steps> {
    let ranks = layout.ranks();
    let parts = match kind {
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter => ranks,
        _ => 1,
    };
    let all = Chunks::range(0, parts);
    let up = |rank, parts, effect| Lane { from: rank, to: ranks, parts, effect, start: 0 };
    let down = |rank, parts| Lane { from: ranks, to: rank, parts, effect: Effect::Copy, start: 1 };
    let lanes: Vec<Lane> = match kind {
        CollectiveKind::AllReduce => {
            (0..ranks).flat_map(|rank| [up(rank, all, Effect::Add), down(rank, all)]).collect()
        }
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
