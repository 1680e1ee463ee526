//! The links inside the nodes and their NICs: equal in every node, so that routes are found once.

use super::{Link, LinkId, LinkKind, Rings, Vertex, add, rings};
use trainwright_spec::cluster::{Bridges, Cluster, Interconnect, Pairs, Wiring};
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// What joins the GPUs of each node, and the NICs of all nodes.
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

/// What rings need to know of the interconnect.
#[derive(Debug)]
enum Wired {
    /// Each GPU has all of this bandwidth to any other.
    Shared { bandwidth: BytesPerSecond, kind: LinkKind },
    /// Links between pairs, by GPU and GPU, each of this bandwidth.
    Pairs { links: Vec<Vec<usize>>, bandwidth: BytesPerSecond },
}

/// A link of one node.
#[derive(Debug, Clone)]
struct Local {
    from: usize,
    to: usize,
    bandwidth: BytesPerSecond,
    latency: Seconds,
    kind: LinkKind,
}

/// Links of one node over one medium; the first vertices are its GPUs.
#[derive(Debug)]
struct Graph {
    names: Vec<Name>,
    links: Vec<Local>,
    /// The link to take at a vertex for a GPU, at vertex × GPUs + GPU; empty where all links lead to and from one
    /// switch.
    next: Vec<Option<u32>>,
    /// The first of these links among those of a node.
    first: usize,
}

#[derive(Debug, Clone, Copy)]
enum Name {
    Gpu(usize),
    GpuSwitch,
    PcieSwitch(usize),
    Socket(usize),
}

impl Nodes {
    /// Adds the links of all nodes: those inside each node, node by node, then all NICs'.
    pub fn new(cluster: &Cluster, links: &mut Vec<Link>) -> Self {
        let (node, gpus) = (&cluster.node, cluster.node.gpus.value);
        let interconnect = Graph::new(&node.interconnect, gpus, 0);
        let host = node.host.as_ref().map(|host| Graph::new(host, gpus, interconnect.links.len()));
        for index in 0..cluster.nodes {
            for graph in std::iter::once(&interconnect).chain(&host) {
                links.extend(graph.links.iter().map(|local| graph.global(local, index, gpus)));
            }
        }
        let ports = node.nics.as_ref().map_or(0, |nics| nics.ports(gpus));
        let mut nodes = Self {
            gpus,
            local_links: interconnect.links.len() + host.as_ref().map_or(0, |host| host.links.len()),
            interconnect,
            host,
            wiring: Wired::new(&node.interconnect, gpus),
            ports,
            port_bandwidth: BytesPerSecond::new(0.0),
            first_nic: links.len(),
        };
        if let Some(nics) = node.nics.as_ref().filter(|_| cluster.nodes > 1) {
            let all = nics.bandwidth.value * nics.efficiency.value * nics.count.value as f64;
            nodes.port_bandwidth = all / ports as f64;
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
        let found = self.interconnect.route(self, from, to, path);
        if found && (self.host.is_none() || path.len() - before <= 2) {
            return true;
        }
        path.truncate(before);
        self.host_route(from, to, path)
    }

    /// Appends the way between two GPUs of a node over PCIe; false if it has none.
    pub fn host_route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) -> bool {
        let graph = match (&self.host, &self.wiring) {
            (Some(host), _) => host,
            (None, Wired::Shared { kind: LinkKind::Host, .. }) => &self.interconnect,
            _ => return false,
        };
        from / self.gpus == to / self.gpus && (from == to || graph.route(self, from, to, path))
    }

    /// Ways out of each node.
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// What all NICs of a node send.
    pub fn injection(&self) -> BytesPerSecond {
        self.port_bandwidth * self.ports as f64
    }

    /// What one port sends.
    pub fn port_bandwidth(&self) -> BytesPerSecond {
        self.port_bandwidth
    }

    /// The node of a GPU, and its port there.
    pub fn port(&self, gpu: usize) -> (usize, usize) {
        (gpu / self.gpus, gpu % self.gpus * self.ports / self.gpus)
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

    /// The GPU of `gpu`'s own node that has `port` and to which `gpu` can hand data over its own links: its
    /// counterpart in the run of GPUs that share the port. None where only PCIe or several links join them.
    pub fn relay(&self, gpu: usize, port: usize) -> Option<usize> {
        let run = |port: usize| (port * self.gpus).div_ceil(self.ports);
        let (node, own) = self.port(gpu);
        let place = gpu % self.gpus - run(own);
        let members = run(port + 1) - run(port);
        let relay = node * self.gpus + run(port) + place % members;
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

    /// See `Topology::rings`; none where neither links nor PCIe form one.
    pub fn rings(&self, group: &[usize]) -> Option<Rings> {
        let over = |bandwidth, kind| Some(Rings { cycles: vec![group.to_vec()], bandwidth, kind });
        let (links, bandwidth) = match &self.wiring {
            Wired::Shared { bandwidth, kind } => return over(*bandwidth, *kind),
            Wired::Pairs { links, bandwidth } => (links, *bandwidth),
        };
        let found = rings::between(group, |from, to| (links[from % self.gpus][to % self.gpus], bandwidth));
        found.or_else(|| over(self.host.as_ref()?.links.first()?.bandwidth, LinkKind::Host))
    }
}

impl Wired {
    fn new(interconnect: &Interconnect, gpus: usize) -> Self {
        let all = interconnect.bandwidth.value * interconnect.efficiency.value;
        let each = |count: usize| all / count as f64;
        match &interconnect.wiring {
            Wiring::Switched => Wired::Shared { bandwidth: all, kind: LinkKind::Interconnect },
            Wiring::Bridges(_) => Wired::Shared { bandwidth: all, kind: LinkKind::Host },
            Wiring::Direct => {
                // Where the number of links is unknown, two to each peer: an even mesh of them splits into rings.
                let (peers, known) =
                    (gpus.max(2) - 1, interconnect.links.as_ref().map_or(0, |links| links.value));
                let count = if known > 0 && known % peers == 0 { known / peers } else { 2 };
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

/// Into how many equal links a GPU's bandwidth is split.
fn split(interconnect: &Interconnect, gpus: usize) -> usize {
    let used = interconnect.wiring.links(gpus);
    match (&interconnect.wiring, &interconnect.links) {
        (Wiring::Pairs(_), Some(links)) => links.value,
        _ => used,
    }
}

impl Graph {
    fn new(interconnect: &Interconnect, gpus: usize, first: usize) -> Self {
        let mut graph =
            Self { names: (0..gpus).map(Name::Gpu).collect(), links: Vec::new(), next: Vec::new(), first };
        let all = interconnect.bandwidth.value * interconnect.efficiency.value;
        let (latency, kind) = (interconnect.latency.value, LinkKind::Interconnect);
        let link = all / split(interconnect, gpus) as f64;
        match &interconnect.wiring {
            Wiring::Switched if gpus == 1 => {}
            Wiring::Switched => {
                let switch = graph.vertex(Name::GpuSwitch);
                for gpu in 0..gpus {
                    graph.join(gpu, switch, Way { bandwidth: all, up: latency, down: Seconds::ZERO, kind });
                }
                return graph;
            }
            Wiring::Direct => {
                for (a, b) in (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| (a, b))) {
                    graph.join(a, b, Way { bandwidth: link, up: latency, down: latency, kind });
                }
            }
            Wiring::Pairs(Pairs { links, .. }) => {
                for [a, b, count] in links {
                    let way = Way { bandwidth: link * *count as f64, up: latency, down: latency, kind };
                    graph.join(*a, *b, way);
                }
            }
            Wiring::Bridges(bridges) => graph.add_bridges(bridges, gpus, interconnect),
        }
        graph.find_routes(gpus);
        graph
    }

    /// The time of one step stands on the GPU's lanes up; switches and sockets add none.
    fn add_bridges(&mut self, bridges: &Bridges, gpus: usize, interconnect: &Interconnect) {
        let per_socket = bridges.gpus_per_socket.as_ref().map_or(gpus, |count| count.value);
        let lanes = Way {
            bandwidth: interconnect.bandwidth.value * interconnect.efficiency.value,
            up: interconnect.latency.value,
            down: Seconds::ZERO,
            kind: LinkKind::Host,
        };
        let beyond = |bandwidth| Way { bandwidth, up: Seconds::ZERO, ..lanes };
        let sockets: Vec<usize> =
            (0..gpus.div_ceil(per_socket)).map(|socket| self.vertex(Name::Socket(socket))).collect();
        let mut switch = None;
        for gpu in 0..gpus {
            let socket = sockets[gpu / per_socket];
            let Some(per_switch) = bridges.gpus_per_switch.as_ref().map(|count| count.value) else {
                self.join(gpu, socket, lanes);
                continue;
            };
            if gpu % per_socket % per_switch == 0 {
                let index = gpu / per_socket * (per_socket / per_switch) + gpu % per_socket / per_switch;
                let vertex = self.vertex(Name::PcieSwitch(index));
                self.join(vertex, socket, beyond(lanes.bandwidth));
                switch = Some(vertex);
            }
            self.join(gpu, switch.expect("a socket's first GPU starts a switch"), lanes);
        }
        if let Some(between) = &bridges.between_sockets {
            let bandwidth = between.value * interconnect.efficiency.value;
            for (index, a) in sockets.iter().enumerate() {
                for b in &sockets[index + 1..] {
                    self.join(*a, *b, beyond(bandwidth));
                }
            }
        }
    }

    fn vertex(&mut self, name: Name) -> usize {
        self.names.push(name);
        self.names.len() - 1
    }

    fn join(&mut self, low: usize, high: usize, way: Way) {
        let link = |from, to, latency| Local { from, to, bandwidth: way.bandwidth, latency, kind: way.kind };
        self.links.extend([link(low, high, way.up), link(high, low, way.down)]);
    }

    /// For every GPU, the next link from every vertex on a way with the fewest links, and of those the widest; equal
    /// ones are dealt out in turn.
    fn find_routes(&mut self, gpus: usize) {
        let vertices = self.names.len();
        let mut outgoing = vec![Vec::new(); vertices];
        for (index, link) in self.links.iter().enumerate() {
            outgoing[link.from].push(index);
        }
        self.next = vec![None; vertices * gpus];
        for gpu in 0..gpus {
            let mut width = vec![None; vertices];
            width[gpu] = Some(f64::INFINITY);
            let mut reached = 1;
            while reached > 0 {
                let mut wave = Vec::new();
                for vertex in (0..vertices).filter(|vertex| width[*vertex].is_none()) {
                    let ways = outgoing[vertex].iter().filter_map(|index| {
                        let link = &self.links[*index];
                        Some((*index, link.bandwidth.get().min(width[link.to]?)))
                    });
                    let ways: Vec<(usize, f64)> = ways.collect();
                    let widest = ways.iter().map(|(_, width)| *width).fold(0.0, f64::max);
                    let best: Vec<usize> =
                        ways.iter().filter(|(_, width)| *width == widest).map(|(index, _)| *index).collect();
                    if !best.is_empty() {
                        wave.push((vertex, best[(vertex + gpu) % best.len()], widest));
                    }
                }
                reached = wave.len();
                for (vertex, index, widest) in wave {
                    width[vertex] = Some(widest);
                    self.next[vertex * gpus + gpu] = Some(index as u32);
                }
            }
        }
    }

    fn route(&self, nodes: &Nodes, from: usize, to: usize, path: &mut Vec<LinkId>) -> bool {
        let (mut vertex, gpu) = (from % nodes.gpus, to % nodes.gpus);
        let first = from / nodes.gpus * nodes.local_links + self.first;
        if self.next.is_empty() {
            path.extend([first + 2 * vertex, first + 2 * gpu + 1].map(|link| LinkId(link as u32)));
            return true;
        }
        while vertex != gpu {
            let Some(index) = self.next[vertex * nodes.gpus + gpu] else { return false };
            path.push(LinkId((first + index as usize) as u32));
            vertex = self.links[index as usize].to;
        }
        true
    }

    fn global(&self, local: &Local, node: usize, gpus: usize) -> Link {
        let name = |vertex: usize| match self.names[vertex] {
            Name::Gpu(gpu) => Vertex::Gpu(node * gpus + gpu),
            Name::GpuSwitch => Vertex::GpuSwitch { node },
            Name::PcieSwitch(index) => Vertex::PcieSwitch { node, index },
            Name::Socket(index) => Vertex::Socket { node, index },
        };
        let Local { from, to, bandwidth, latency, kind } = *local;
        Link { bandwidth, latency, kind, from: name(from), to: name(to) }
    }
}

/// What two links between two vertices are like.
#[derive(Clone, Copy)]
struct Way {
    bandwidth: BytesPerSecond,
    up: Seconds,
    down: Seconds,
    kind: LinkKind,
}
