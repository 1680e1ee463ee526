//! The links of one node over one medium, and the ways between its GPUs, found once for all nodes.

use super::graph::{Link, LinkKind, Vertex};
use crate::flow::LinkId;
use trainwright_spec::cluster::{Bridges, Interconnect, Pairs, Wiring};
use trainwright_spec::units::{BytesPerSecond, Seconds};

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
pub(super) struct Graph {
    gpus: usize,
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

/// Into how many equal links a GPU's bandwidth is split.
pub(super) fn split(interconnect: &Interconnect, gpus: usize) -> usize {
    let used = interconnect.wiring.links(gpus);
    match (&interconnect.wiring, &interconnect.links) {
        (Wiring::Pairs(_), Some(links)) => links.value,
        _ => used,
    }
}

impl Graph {
    /// The links of one node; `first` is the place of the first among all that a node has.
    pub fn new(interconnect: &Interconnect, gpus: usize, first: usize) -> Self {
        let names = (0..gpus).map(Name::Gpu).collect();
        let mut graph = Self { gpus, names, links: Vec::new(), next: Vec::new(), first };
        let all = interconnect.achieved();
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
            bandwidth: interconnect.achieved(),
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
            if (gpu % per_socket).is_multiple_of(per_switch) {
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

    /// The link from a GPU to the switch that joins all, counted from the node's first; the next one leads back.
    pub fn to_switch(&self, gpu: usize) -> Option<usize> {
        let is_up = |link: &Local| link.from == gpu && matches!(self.names[link.to], Name::GpuSwitch);
        Some(self.first + self.links.iter().position(is_up)?)
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

    /// How many links a node has here.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// The links of node `node`.
    pub fn links_of(&self, node: usize) -> impl Iterator<Item = Link> + '_ {
        self.links.iter().map(move |local| self.global(local, node))
    }

    /// Appends the way between two GPUs of a node, by their places in it, where the node's first link has id
    /// `origin`; false if there is none.
    pub fn route(&self, origin: usize, from: usize, to: usize, path: &mut Vec<LinkId>) -> bool {
        let first = origin + self.first;
        if self.next.is_empty() {
            path.extend([first + 2 * from, first + 2 * to + 1].map(|link| LinkId(link as u32)));
            return true;
        }
        let mut vertex = from;
        while vertex != to {
            let Some(index) = self.next[vertex * self.gpus + to] else { return false };
            path.push(LinkId((first + index as usize) as u32));
            vertex = self.links[index as usize].to;
        }
        true
    }

    fn global(&self, local: &Local, node: usize) -> Link {
        let name = |vertex: usize| match self.names[vertex] {
            Name::Gpu(gpu) => Vertex::Gpu(node * self.gpus + gpu),
            Name::GpuSwitch => Vertex::GpuSwitch { node },
            Name::PcieSwitch(index) => Vertex::PcieSwitch { node, index },
            Name::Socket(index) => Vertex::Socket { node, index },
        };
        let Local { from, to, bandwidth, latency, kind } = *local;
        Link { bandwidth, latency, kind, from: name(from), to: name(to) }
    }
}

/// Both directions of a connection between two vertices.
#[derive(Clone, Copy)]
struct Way {
    bandwidth: BytesPerSecond,
    up: Seconds,
    down: Seconds,
    kind: LinkKind,
}
