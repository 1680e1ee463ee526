//! The part of NICs' bandwidth that the fabric between nodes leaves, and the latency that it adds.
//!
//! Groups of one shape tile the cluster, as those of an axis of a mesh do: while a group communicates, its siblings on
//! the other GPUs and nodes do the same.

use super::placement::groups;
use super::topology::Topology;
use crate::flow::{Flow, FlowId, Network};
use trainwright_spec::cluster::{Cluster, Shape, Taper, Torus};
use trainwright_spec::units::{Picoseconds, Seconds};

/// The way of a group through the fabric, beside the NICs at its ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Way {
    /// The part of its NICs' bandwidth that every node of a ring keeps, up to 1.
    pub ring: f64,
    /// Of an all-to-all, the part of the tensor that a GPU's share of the NICs could send meanwhile: (p − k)/p where
    /// nothing but the NICs is narrow.
    pub exchange: f64,
    /// Time that switches add to a step.
    pub latency: Seconds,
}

impl Way {
    /// The way of a group of sorted global `ranks` on several nodes, with its siblings.
    ///
    /// Where the fabric narrows at pods of nodes by r, a ring keeps min(1, m / r), m the group's nodes in the pod that
    /// has the fewest of them: of m nodes in a ring only one sends out of the pod in each direction. Of an all-to-all
    /// of p ranks, q of them in that pod, (p − q)/p of the tensor leaves the pod through 1/r of the NICs' bandwidth. A
    /// step goes up and down through every level that the group is spread over, and each link between switches adds
    /// the fabric's hop latency.
    pub fn through(ranks: &[usize], cluster: &Cluster) -> Self {
        match &cluster.fabric.shape {
            Shape::Links(_) => over_links(ranks, cluster),
            Shape::Torus(torus) => over_torus(ranks, torus),
            Shape::FatTree(_) | Shape::RailOptimised(_) | Shape::Dragonfly(_) => over_tapers(ranks, cluster),
        }
    }
}

fn over_tapers(ranks: &[usize], cluster: &Cluster) -> Way {
    let (gpus, p) = (cluster.node.gpus.value, ranks.len() as f64);
    let hop = cluster.fabric.hop_latency.as_ref().map_or(Seconds::ZERO, |latency| latency.value);
    let leaving = |inside: usize| (p - inside as f64) / p;
    let exchange = leaving(groups(ranks, gpus).1);
    let mut way = Way { ring: 1.0, exchange, latency: Seconds::ZERO };
    for Taper { nodes, oversubscription } in cluster.fabric.tapers() {
        let pods = ranks.chunk_by(|a, b| a / (gpus * nodes) == b / (gpus * nodes));
        if pods.clone().count() > 1 {
            let fewest_nodes = pods.clone().map(|pod| groups(pod, gpus).0).min().unwrap_or(0);
            let fewest_ranks = pods.map(<[usize]>::len).min().unwrap_or(0);
            way.ring = way.ring.min(fewest_nodes as f64 / oversubscription.value);
            way.exchange = way.exchange.max(leaving(fewest_ranks) * oversubscription.value);
            way.latency += 2.0 * hop;
        }
    }
    way
}

/// Groups along some dims of a torus use only those: d of D dims carry a ring over d/D of a GPU's links. Of an
/// all-to-all over e positions of a closed dim, half of each half crosses two cuts, so that a link carries e/8 of the
/// tensor, one of an open dim e/4; the longest dim sets the pace.
///
/// Source: Dally & Towles 2004, Principles and Practices of Interconnection Networks, section 5.2 (bisection).
/// Assumes ranks that are numbered along the dims, and dims that the group covers or does not enter.
fn over_torus(ranks: &[usize], torus: &Torus) -> Way {
    let (first, last) = (ranks[0], ranks[ranks.len() - 1]);
    let stride = ranks.get(1).map_or(1, |second| second - first);
    let (mut below, mut along, mut exchange) = (1, 0, 0.0f64);
    let parts = 2.0 * torus.dims.len() as f64;
    for (dim, size) in torus.dims.iter().enumerate() {
        let beyond = below * size;
        if stride < beyond && last - first >= below {
            along += 1;
            let places = (((last - first) / below + 1).min(*size) / stride.div_ceil(below)).max(1);
            let cuts = if torus.wraps(dim) && places == *size { 2.0 } else { 1.0 };
            exchange = exchange.max(places as f64 / (4.0 * cuts) * parts);
        }
        below = beyond;
    }
    Way { ring: along as f64 / torus.dims.len() as f64, exchange, latency: Seconds::ZERO }
}

/// On a fabric of single links all NICs send at once, each to its counterparts on other nodes, max-min fairly; the
/// slowest of these flows sets the pace.
fn over_links(ranks: &[usize], cluster: &Cluster) -> Way {
    let topology = Topology::new(cluster);
    let gpus = cluster.node.gpus.value;
    let mut homes: Vec<usize> = ranks.iter().map(|rank| rank / gpus).collect();
    homes.dedup();
    let count = homes.len();
    let next = (0..count).map(|place| (place, (place + 1) % count));
    let each =
        (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let nics = Nics { topology: &topology, siblings: siblings(&homes, cluster.nodes) };
    let (ring, latency) = nics.slowest(&next.collect::<Vec<_>>());
    let (pair, _) = nics.slowest(&each.collect::<Vec<_>>());
    let per_node = groups(ranks, gpus).1 as f64;
    Way { ring, exchange: per_node / ranks.len() as f64 / pair, latency }
}

/// The nodes of all groups of the same shape: this one's, shifted until the cluster is full.
fn siblings(homes: &[usize], nodes: usize) -> Vec<Vec<usize>> {
    let stride = homes[1] - homes[0];
    let is_even = homes.windows(2).all(|two| two[1] - two[0] == stride);
    let block = stride * homes.len();
    if !is_even || !nodes.is_multiple_of(block) {
        return vec![homes.to_vec()];
    }
    let starts = (0..nodes).step_by(block).flat_map(|first| (0..stride).map(move |shift| first + shift));
    starts.map(|start| (0..homes.len()).map(|place| start + place * stride).collect()).collect()
}

struct Nics<'a> {
    topology: &'a Topology,
    siblings: Vec<Vec<usize>>,
}

impl Nics<'_> {
    /// The part of its NIC that the slowest flow gets when all siblings send between these places of theirs, and the
    /// longest time that the fabric adds.
    fn slowest(&self, places: &[(usize, usize)]) -> (f64, Seconds) {
        let mut network = Network::new(self.topology.shared());
        let (mut flows, mut route): (Vec<(FlowId, f64)>, Vec<_>) = (Vec::new(), Vec::new());
        let mut latency = Seconds::ZERO;
        for (nodes, (from, to)) in
            self.siblings.iter().flat_map(|nodes| places.iter().map(move |ends| (nodes, *ends)))
        {
            for (sender, receiver) in self.topology.senders(nodes[from]).zip(self.topology.senders(nodes[to]))
            {
                route.clear();
                self.topology.route(sender, receiver, &mut route);
                let (nic, fabric) =
                    route.split_first().expect("nodes are joined: checked when they are read");
                latency = latency.max(self.topology.path(fabric).0);
                let path = route.iter().map(|link| (*link, 1.0)).collect();
                let flow = network.start(Picoseconds::ZERO, Flow { amount: 1.0, path, cap: None });
                let flow = flow.expect("links have bandwidth: checked when they are read");
                flows.push((flow, self.topology.link(*nic).bandwidth.get()));
            }
        }
        let parts = flows.into_iter().map(|(flow, alone)| network.rate(flow) / alone);
        (parts.fold(1.0, f64::min), latency)
    }
}
