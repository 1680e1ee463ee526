//! Collectives that the switches between nodes add for (InfiniBand SHARP, which NCCL reaches as CollNet).

use super::in_switch::{SUMMED, copies_to_all, sums_to_ranks};
use super::pipeline::{Lane, pipeline};
use super::steps::{Chunks, Effect, Switch};
use super::{Algorithm, CollectiveKind, Layout, Steps};

/// All-reduce with direct exchanges inside the nodes: each of the k ranks of a node sums a k-th of the tensor, sends
/// its sum to the fabric, gets the sum over nodes back, and hands it to its node. n/k in each direction over a NIC
/// that each rank has to itself, where rings need 2 (N − 1)/N · n/k.
///
/// Source: NCCL src/device/all_reduce.h (CollNetDirect); Graham et al. 2016, "Scalable Hierarchical Aggregation
/// Protocol (SHArP)", COMHPC.
#[derive(Debug, Clone, Copy)]
pub struct CollNet;

impl Algorithm for CollNet {
    fn name(&self) -> &'static str {
        "coll-net"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let (CollectiveKind::AllReduce, 2..) = (kind, layout.nodes()) else { return None };
        let fabric = layout.ranks();
        // With one rank in a node there is nothing to do inside, and no step for it.
        let summed = (layout.per_node() - 1).min(1);
        let mut lanes = through_fabric(layout, fabric, summed);
        for node in 0..layout.nodes() {
            for (place, other) in (0..layout.per_node())
                .flat_map(|place| (0..layout.per_node()).map(move |other| (place, other)))
                .filter(|(place, other)| place != other)
            {
                let (from, to) = (layout.rank(node, place), layout.rank(node, other));
                lanes.push(Lane { from, to, parts: Chunks::one(other), effect: Effect::Add, start: 0 });
                let start = summed + FABRIC_HOPS;
                lanes.push(Lane { from, to, parts: Chunks::one(place), effect: Effect::Copy, start });
            }
        }
        let chunks = layout.per_node() * layout.pieces();
        let steps = Steps::new(kind, layout, chunks, pipeline(lanes, layout.pieces()));
        Some(steps.with_switches([Switch::Fabric]))
    }
}

/// All-reduce where the switches add both inside the nodes and between them: NVLS with SHARP.
///
/// A rank sends n + n/k to its node's switch and n/k to the fabric.
/// Source: NCCL src/device/all_reduce.h (NVLS over several nodes).
#[derive(Debug, Clone, Copy)]
pub struct InSwitchCollNet;

impl Algorithm for InSwitchCollNet {
    fn name(&self) -> &'static str {
        "in-switch-coll-net"
    }

    fn steps(&self, kind: CollectiveKind, layout: Layout) -> Option<Steps> {
        let (CollectiveKind::AllReduce, 2.., 2..) = (kind, layout.nodes(), layout.per_node()) else {
            return None;
        };
        let fabric = layout.ranks() + layout.nodes();
        let mut lanes = sums_to_ranks(layout, 1);
        lanes.extend(through_fabric(layout, fabric, SUMMED));
        lanes.extend(copies_to_all(layout, 1, SUMMED + FABRIC_HOPS));
        let chunks = layout.per_node() * layout.pieces();
        let steps = Steps::new(kind, layout, chunks, pipeline(lanes, layout.pieces()));
        Some(steps.with_switches((0..layout.nodes()).map(Switch::Node).chain([Switch::Fabric])))
    }
}

/// To the fabric and back.
const FABRIC_HOPS: usize = 2;

/// The rank at each place of its node sends that part to the fabric and gets its sum.
fn through_fabric(layout: Layout, fabric: usize, start: usize) -> Vec<Lane> {
    let both_ways = |rank| {
        let parts = Chunks::one(rank % layout.per_node());
        [
            Lane { from: rank, to: fabric, parts, effect: Effect::Add, start },
            Lane { from: fabric, to: rank, parts, effect: Effect::Copy, start: start + 1 },
        ]
    };
    (0..layout.ranks()).flat_map(both_ways).collect()
}
