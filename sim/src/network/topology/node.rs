//! The links inside the nodes and their NICs: equal in every node, so that routes are found once.

use super::graph::{Link, LinkKind, Rings, Vertex, add};
use super::inside::{Graph, split};
use super::rings;
use crate::flow::LinkId;
use trainwright_spec::cluster::{Cluster, Interconnect, Wiring};
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// The links between the GPUs of each node, and the NICs of all nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    gpus: usize,
    /// Links in each node, not counting NICs.
    local_links: usize,
    interconnect: Graph,
    host: Option<Graph>,
    wiring: Wired,
    ports: usize,
    port_bandwidth: BytesPerSecond,
    /// The first link of the NICs: two for each port of each node, out before in.
    first_nic: usize,
}

/// The interconnect as rings see it.
#[derive(Debug)]
enum Wired {
    /// Each GPU has all of this bandwidth to any other.
    Shared { bandwidth: BytesPerSecond, kind: LinkKind },
    /// Links between pairs, by GPU and GPU, each of this bandwidth.
    Pairs { links: Vec<Vec<usize>>, bandwidth: BytesPerSecond },
}

impl Nodes {
    /// Adds the links of all nodes: those inside each node, node by node, then all NICs'.
    pub fn new(cluster: &Cluster, links: &mut Vec<Link>) -> Self {
        let (node, gpus) = (&cluster.node, cluster.node.gpus.value);
        let interconnect = Graph::new(&node.interconnect, gpus, 0);
        let host = node.host.as_ref().map(|host| Graph::new(host, gpus, interconnect.len()));
        for index in 0..cluster.nodes {
            for graph in std::iter::once(&interconnect).chain(&host) {
                links.extend(graph.links_of(index));
            }
        }
        let ports = node.nics.as_ref().map_or(0, |nics| nics.ports(gpus));
        let mut nodes = Self {
            gpus,
            local_links: interconnect.len() + host.as_ref().map_or(0, |host| host.len()),
            interconnect,
            host,
            wiring: Wired::new(&node.interconnect, gpus),
            ports,
            port_bandwidth: BytesPerSecond::new(0.0),
            first_nic: links.len(),
        };
        if let Some(nics) = node.nics.as_ref().filter(|_| cluster.nodes > 1) {
            nodes.port_bandwidth = nics.achieved() / ports as f64;
            for (node, index) in
                (0..cluster.nodes).flat_map(|node| (0..ports).map(move |index| (node, index)))
            {
                let nic = Vertex::Nic { node, index };
                let switch = Vertex::Switch { level: 0, index: 0 };
                let out = Link {
                    bandwidth: nodes.port_bandwidth,
                    latency: nics.latency.value,
                    kind: LinkKind::Nic,
                    from: nic.clone(),
                    to: switch.clone(),
                };
                add(links, out.clone());
                add(links, Link { latency: Seconds::ZERO, from: switch, to: nic, ..out });
            }
        }
        nodes
    }

    /// Appends the way between two GPUs of a node; false if they are on different ones.
    ///
    /// NVLink is taken where it joins them directly or over one GPU between them, as NCCL does; else PCIe.
    pub fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) -> bool {
        let node = from / self.gpus;
        if node != to / self.gpus {
            return false;
        }
        let before = path.len();
        let found = self.walk(&self.interconnect, from, to, path);
        if found && (self.host.is_none() || path.len() - before <= 2) {
            return true;
        }
        path.truncate(before);
        self.host_route(from, to, path)
    }

    /// The links between a GPU and the switches of its node, to them and from them.
    pub fn switch(&self, gpu: usize) -> Option<[LinkId; 2]> {
        let up = gpu / self.gpus * self.local_links + self.interconnect.to_switch(gpu % self.gpus)?;
        Some([LinkId(up as u32), LinkId(up as u32 + 1)])
    }

    /// Appends the route between two GPUs of a node over PCIe; false if there is none.
    pub fn host_route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) -> bool {
        let graph = match (&self.host, &self.wiring) {
            (Some(host), _) => host,
            (None, Wired::Shared { kind: LinkKind::Host, .. }) => &self.interconnect,
            _ => return false,
        };
        from / self.gpus == to / self.gpus && (from == to || self.walk(graph, from, to, path))
    }

    fn walk(&self, graph: &Graph, from: usize, to: usize, path: &mut Vec<LinkId>) -> bool {
        let origin = from / self.gpus * self.local_links;
        graph.route(origin, from % self.gpus, to % self.gpus, path)
    }

    /// Ways out of each node.
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// Bandwidth of all NICs of a node.
    pub fn injection(&self) -> BytesPerSecond {
        self.port_bandwidth * self.ports as f64
    }

    /// Bandwidth of one port.
    pub fn port_bandwidth(&self) -> BytesPerSecond {
        self.port_bandwidth
    }

    /// The node of a GPU, and its port there.
    pub fn port(&self, gpu: usize) -> (usize, usize) {
        (gpu / self.gpus, gpu % self.gpus * self.ports / self.gpus)
    }

    /// The first GPU of a node that a port serves, by its place in the node.
    fn first_gpu(&self, port: usize) -> usize {
        (port * self.gpus).div_ceil(self.ports)
    }

    /// The first GPU that a node's port serves, by its rank.
    pub fn gpu(&self, node: usize, port: usize) -> usize {
        node * self.gpus + self.first_gpu(port)
    }

    /// The link out of a node's port.
    pub fn nic_out(&self, (node, port): (usize, usize)) -> LinkId {
        LinkId((self.first_nic + 2 * (node * self.ports + port)) as u32)
    }

    /// The link into a node's port.
    pub fn nic_in(&self, (node, port): (usize, usize)) -> LinkId {
        LinkId(self.nic_out((node, port)).0 + 1)
    }

    /// Says which switch of the fabric a node's port is at.
    pub fn attach(&self, at: (usize, usize), switch: &Vertex, links: &mut [Link]) {
        links[self.nic_out(at).0 as usize].to = switch.clone();
        links[self.nic_in(at).0 as usize].from = switch.clone();
    }

    /// The GPU of `gpu`'s node that has `port` and to which `gpu` can hand data over its links: its
    /// counterpart in the run of GPUs that share the port. `None` if only PCIe or several links join them.
    pub fn relay(&self, gpu: usize, port: usize) -> Option<usize> {
        let (node, gpu_port) = self.port(gpu);
        let place = gpu % self.gpus - self.first_gpu(gpu_port);
        let members = self.first_gpu(port + 1) - self.first_gpu(port);
        let relay = node * self.gpus + self.first_gpu(port) + place % members;
        let joined = match &self.wiring {
            Wired::Shared { kind, .. } => *kind == LinkKind::Interconnect,
            Wired::Pairs { links, .. } => links[gpu % self.gpus][relay % self.gpus] > 0,
        };
        joined.then_some(relay)
    }

    /// Whether the GPUs of a group are in one node.
    pub fn together(&self, group: &[usize]) -> bool {
        group.iter().all(|gpu| gpu / self.gpus == group[0] / self.gpus)
    }

    /// Rings over the interconnect, see `Topology::rings`; `None` if it is PCIe or its links form no ring.
    pub fn rings(&self, group: &[usize]) -> Option<Rings> {
        match &self.wiring {
            Wired::Shared { kind: LinkKind::Interconnect, bandwidth } => Some(Rings {
                cycles: vec![group.to_vec()],
                bandwidth: *bandwidth,
                kind: LinkKind::Interconnect,
            }),
            Wired::Shared { .. } => None,
            Wired::Pairs { links, bandwidth } => {
                rings::between(group, |from, to| (links[from % self.gpus][to % self.gpus], *bandwidth))
            }
        }
    }
}

impl Wired {
    fn new(interconnect: &Interconnect, gpus: usize) -> Self {
        let all = interconnect.achieved();
        let each = |count: usize| all / count as f64;
        match &interconnect.wiring {
            Wiring::Switched => Wired::Shared { bandwidth: all, kind: LinkKind::Interconnect },
            Wiring::Bridges(_) => Wired::Shared { bandwidth: all, kind: LinkKind::Host },
            Wiring::Direct => {
                // Where the number of links is unknown, two to each peer: an even mesh of them splits into rings.
                let (peers, known) =
                    (gpus.max(2) - 1, interconnect.links.as_ref().map_or(0, |links| links.value));
                let count = if known > 0 && known.is_multiple_of(peers) { known / peers } else { 2 };
                let links =
                    (0..gpus).map(|a| (0..gpus).map(|b| if a == b { 0 } else { count }).collect()).collect();
                Wired::Pairs { links, bandwidth: each(count * peers) }
            }
            Wiring::Pairs(pairs) => {
                let mut links = vec![vec![0; gpus]; gpus];
                for [a, b, count] in &pairs.links {
                    (links[*a][*b], links[*b][*a]) = (*count, *count);
                }
                Wired::Pairs { links, bandwidth: each(split(interconnect, gpus)) }
            }
        }
    }
}
