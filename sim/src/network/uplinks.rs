//! What the fabric between nodes leaves of their NICs' bandwidth, and adds to their latency.

use super::placement::groups;
use super::topology::Topology;
use crate::flow::{Flow, FlowId, Network};
use trainwright_spec::cluster::{Cluster, Shape, Taper};
use trainwright_spec::units::{Picoseconds, Seconds};

/// The way of a group's ring through the fabric, beside the NICs at its ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Way {
    /// The part of its NICs' bandwidth that every node of the ring keeps, up to 1.
    pub share: f64,
    /// Time that switches add to a step.
    pub latency: Seconds,
}

impl Way {
    /// The way of a group of sorted global `ranks` on several nodes, whose siblings on the other GPUs of these nodes
    /// do the same.
    ///
    /// Where the fabric narrows at groups of nodes, share = min over its levels of min(1, m / oversubscription), m the
    /// group's nodes in the pod that has the fewest of them: of m nodes in a ring only one sends out of the pod in each
    /// direction, so that narrow uplinks hurt only groups with few nodes in each pod. A step goes up and down through
    /// every level that the group is spread over, and each link between switches adds the fabric's hop latency.
    /// On a fabric of single links every NIC of each node sends to its counterpart on the next node at once, max-min
    /// fairly; the slowest of these flows sets the pace. A torus has no fabric beside the GPUs' own links.
    pub fn through(ranks: &[usize], cluster: &Cluster) -> Self {
        if let Shape::Links(_) = cluster.fabric.shape {
            return over_links(ranks, cluster);
        }
        let gpus = cluster.node.gpus.value;
        let share = |taper: &Taper| {
            let pod = gpus * taper.nodes;
            let sizes = ranks.chunk_by(|a, b| a / pod == b / pod).map(|pod| groups(pod, gpus).0);
            let spread = sizes.clone().count() > 1;
            spread.then(|| (sizes.min().unwrap_or(0) as f64 / taper.oversubscription.value).min(1.0))
        };
        let shares: Vec<f64> = cluster.fabric.tapers().iter().filter_map(share).collect();
        let hop = cluster.fabric.hop_latency.as_ref().map_or(Seconds::ZERO, |latency| latency.value);
        Self { share: shares.iter().copied().fold(1.0, f64::min), latency: 2.0 * shares.len() as f64 * hop }
    }
}

fn over_links(ranks: &[usize], cluster: &Cluster) -> Way {
    let topology = Topology::new(cluster);
    let gpus = cluster.node.gpus.value;
    let ports = cluster.node.nics.as_ref().map_or(gpus, |nics| nics.ports(gpus));
    let mut homes: Vec<usize> = ranks.iter().map(|rank| rank / gpus).collect();
    homes.dedup();
    let mut network = Network::new(topology.shared());
    let mut way = Way { share: 1.0, latency: Seconds::ZERO };
    let (mut flows, mut route): (Vec<FlowId>, _) = (Vec::new(), Vec::new());
    let mut alone = Vec::new();
    for (index, home) in homes.iter().enumerate() {
        let next = homes[(index + 1) % homes.len()];
        for port in 0..ports {
            let gpu = |node: usize| node * gpus + (port * gpus).div_ceil(ports);
            route.clear();
            topology.route(gpu(*home), gpu(next), &mut route);
            let (first, fabric) = route.split_first().expect("nodes are joined: checked when they are read");
            way.latency = way.latency.max(topology.path(fabric).0);
            alone.push(topology.link(*first).bandwidth.get());
            let path = route.iter().map(|link| (*link, 1.0)).collect();
            let flow = Flow { amount: 1.0, path, cap: None };
            flows.push(
                network.start(Picoseconds::ZERO, flow).expect("links have bandwidth: checked when read"),
            );
        }
    }
    let kept = flows.into_iter().zip(alone).map(|(flow, alone)| network.rate(flow) / alone);
    way.share = kept.fold(1.0, f64::min);
    way
}
