//! A cluster as a graph: its links in one direction each, and which of them a flow takes.
//!
//! ```text
//! GPU ─ interconnect ─ GPU          in a node: over its switches, its links between pairs, or its host bridges
//! GPU ─ NIC ─ fabric ─ NIC ─ GPU    between nodes: the fabric's file says over which of its links
//! ```
//!
//! Capacities are achieved ones: published bandwidth times efficiency. The latency of a path is the sum over its
//! links; what the catalog gives for one step over an interconnect or a NIC stands on the first link of that kind.
//! Between a GPU and its NIC there is no link: the NIC's efficiency was measured with PCIe in the path.
//! Nothing here knows of collectives, messages or time.

mod cables;
mod dragonfly;
mod fat_tree;
mod graph;
mod inside;
mod node;
mod rail_optimised;
mod rings;
mod site;
mod torus;

pub use crate::flow::LinkId;
pub use graph::{Link, LinkKind, Rings, Vertex};

use crate::flow;
use graph::Routes;
use node::Nodes;
use site::Site;
use std::sync::Arc;
use trainwright_spec::cluster::{Cluster, Shape};
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// Directed graph of links; its vertices are GPUs, switches, host bridges and NICs.
///
/// ```
/// use trainwright_sim::network::topology::Topology;
/// use trainwright_spec::cluster::Cluster;
///
/// let topology = Topology::new(&Cluster::from_name("dgx-a100:2").unwrap());
/// let mut path = Vec::new();
/// topology.route(0, 8, &mut path);
/// let ends: Vec<String> =
///     path.iter().map(|id| { let link = topology.link(*id); format!("{} > {}", link.from, link.to) }).collect();
/// assert_eq!(ends, ["node0.nic0 > switch0.0", "switch0.0 > switch1.0", "switch1.0 > switch0.1", "switch0.1 > node1.nic0"]);
/// ```
#[derive(Debug)]
pub struct Topology {
    links: Vec<Link>,
    gpus: usize,
    /// The links inside nodes; `None` if the fabric does.
    nodes: Option<Arc<Nodes>>,
    /// `None` if there is one node.
    fabric: Option<Box<dyn Routes>>,
}

impl Topology {
    /// The graph of a cluster that `Cluster` has checked: a number of links proportional to its GPUs.
    pub fn new(cluster: &Cluster) -> Self {
        let mut links = Vec::new();
        let gpus = cluster.gpus();
        if let Shape::Torus(torus) = &cluster.fabric.shape {
            let torus = torus::Grid::new(torus, cluster, &mut links);
            return Self { links, gpus, nodes: None, fabric: Some(Box::new(torus)) };
        }
        let nodes = Arc::new(Nodes::new(cluster, &mut links));
        if cluster.nodes == 1 {
            return Self { links, gpus, nodes: Some(nodes), fabric: None };
        }
        let site = Site { cluster, nodes: nodes.clone(), links: &mut links };
        let fabric: Box<dyn Routes> = match &cluster.fabric.shape {
            Shape::FatTree(tree) => Box::new(fat_tree::Tree::new(tree, site)),
            Shape::RailOptimised(rails) => Box::new(rail_optimised::Rails::new(rails, site)),
            Shape::Dragonfly(dragonfly) => Box::new(dragonfly::Groups::new(dragonfly, site)),
            Shape::Links(cables) => Box::new(cables::Graph::new(cables, site)),
            Shape::Torus(_) => unreachable!("a torus is built above"),
        };
        Self { links, gpus, nodes: Some(nodes), fabric: Some(fabric) }
    }

    /// All links, each at the place its id says.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links as a network of flows takes them, in the same order.
    pub fn shared(&self) -> Vec<flow::Link> {
        self.links.iter().map(|link| flow::Link::shared(link.bandwidth)).collect()
    }

    /// One link.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.0 as usize]
    }

    /// GPUs of the cluster.
    pub fn gpus(&self) -> usize {
        self.gpus
    }

    /// Appends the links of the route from GPU `from` to GPU `to`, nothing if they are the same. Of several equal routes a
    /// hash of both ends takes one, so that the same two GPUs always use the same links.
    ///
    /// # Panics
    /// If a GPU is not on the cluster.
    pub fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) {
        assert!(from.max(to) < self.gpus, "GPU {} is not on the cluster of {}", from.max(to), self.gpus);
        if from == to || self.nodes.as_ref().is_some_and(|nodes| nodes.route(from, to, path)) {
            return;
        }
        self.fabric.as_ref().expect("GPUs of different nodes have a fabric").route(from, to, path);
    }

    /// The links between a GPU and the switches that join the GPUs of its node, to them and from them; `None` if
    /// its node has no such switches.
    pub fn node_switch(&self, gpu: usize) -> Option<[LinkId; 2]> {
        self.nodes.as_ref()?.switch(gpu)
    }

    /// The links between a GPU and the switches of the fabric, to them and from them: its NIC's. `None` on a torus and
    /// if there is one node.
    pub fn fabric_switch(&self, gpu: usize) -> Option<[LinkId; 2]> {
        let nodes = self.nodes.as_ref().filter(|_| self.fabric.is_some())?;
        let port = nodes.port(gpu);
        Some([nodes.nic_out(port), nodes.nic_in(port)])
    }

    /// One GPU for each NIC of each node, the first that it serves; nothing without NICs.
    pub fn senders(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let nodes = self.nodes.iter();
        nodes.flat_map(move |nodes| (0..nodes.ports()).map(move |port| nodes.gpu(node, port)))
    }

    /// Appends the links of the way from one GPU of a node to another over PCIe and its host bridges; false where
    /// the node's PCIe is not described.
    pub fn host_route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| nodes.host_route(from, to, path))
    }

    /// Time of an empty message along a path, and what a flow alone on it reaches.
    pub fn path(&self, path: &[LinkId]) -> (Seconds, BytesPerSecond) {
        let latency = path.iter().map(|id| self.link(*id).latency).sum();
        let unlimited = BytesPerSecond::new(f64::INFINITY);
        (latency, path.iter().map(|id| self.link(*id).bandwidth).fold(unlimited, BytesPerSecond::min))
    }

    /// The most rings through all GPUs of a `group` that no two share a link: how many links of a GPU a ring
    /// collective uses at once. Over switches it is one ring with a GPU's whole bandwidth. Where the links between
    /// pairs form no ring, it is one in the order of the group over PCIe, or without that over the ways of `route`,
    /// with what is left of links that it uses more than once. `None` for fewer than two GPUs, and for GPUs that only NICs join.
    pub fn rings(&self, group: &[usize]) -> Option<Rings> {
        if group.len() < 2 {
            return None;
        }
        match (&self.nodes, &self.fabric) {
            (Some(nodes), _) if !nodes.together(group) => return None,
            (Some(nodes), _) => nodes.rings(group),
            (None, fabric) => {
                let fabric = fabric.as_ref()?;
                rings::between(group, |from, to| fabric.direct(from, to))
            }
        }
        .or_else(|| self.ring_over(group, |from, to, path| self.host_route(from, to, path)))
        .or_else(|| {
            self.ring_over(group, |from, to, path| {
                self.route(from, to, path);
                true
            })
        })
    }

    /// One ring in the order of the group, as fast as its most used link.
    fn ring_over(
        &self,
        group: &[usize],
        way: impl Fn(usize, usize, &mut Vec<LinkId>) -> bool,
    ) -> Option<Rings> {
        let mut path = Vec::new();
        let next = group.iter().cycle().skip(1);
        if !group.iter().zip(next).all(|(from, to)| way(*from, *to, &mut path)) {
            return None;
        }
        path.sort_unstable();
        let share = |links: &[LinkId]| self.link(links[0]).bandwidth / links.len() as f64;
        let bandwidth = path.chunk_by(|a, b| a == b).map(share).reduce(BytesPerSecond::min)?;
        Some(Rings { cycles: vec![group.to_vec()], bandwidth, kind: self.link(path[0]).kind })
    }
}
