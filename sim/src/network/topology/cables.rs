//! Fabrics that a person wrote down link by link: flows take ways with the fewest links.

use super::graph::{Link, LinkKind, Routes, Vertex, add, hash};
use super::node::Nodes;
use super::site::Site;
use crate::flow::LinkId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use trainwright_spec::cluster::{Cable, End};

#[derive(Debug)]
pub(super) struct Graph {
    nodes: Arc<Nodes>,
    /// Next vertex and link, from each vertex. The ports of all nodes come first, node by node; switches follow.
    ways: Vec<Vec<(usize, LinkId)>>,
    /// Links from each vertex to a neighbour of some goal, counted when first needed: the goals are ports, whose
    /// neighbours are few switches.
    distances: Vec<OnceLock<Vec<u32>>>,
}

impl Graph {
    pub fn new(cables: &[Cable], site: Site) -> Self {
        let (nodes, ports) = (site.nodes.clone(), site.nodes.ports());
        let total = site.cluster.nodes * ports;
        for (node, port) in (0..total).map(|index| (index / ports, index % ports)) {
            nodes.attach((node, port), &Vertex::Nic { node, index: port }, site.links);
        }
        let mut ways: Vec<Vec<(usize, LinkId)>> = vec![Vec::new(); total];
        let mut switches: BTreeMap<String, usize> = BTreeMap::new();
        for cable in cables {
            let mut side = |end: End<'_>, name: &str| match end {
                End::Node(node) => ((node * ports..(node + 1) * ports).collect(), Vertex::Named(name.into())),
                End::Nic { node, nic } => (vec![node * ports + nic], Vertex::Nic { node, index: nic }),
                End::Switch(_) => {
                    let vertex = *switches.entry(name.to_string()).or_insert_with(|| {
                        ways.push(Vec::new());
                        ways.len() - 1
                    });
                    (vec![vertex], Vertex::Named(name.into()))
                }
            };
            let [a, b] = cable.ends();
            let ((low, from), (high, to)): ((Vec<usize>, _), (Vec<usize>, _)) =
                (side(a, &cable.between[0]), side(b, &cable.between[1]));
            let there = Link {
                bandwidth: cable.bandwidth.value,
                latency: cable.latency.value,
                kind: LinkKind::Fabric,
                from,
                to,
            };
            let back = Link { from: there.to.clone(), to: there.from.clone(), ..there.clone() };
            let (there, back) = (add(site.links, there), add(site.links, back));
            for (a, b) in low.iter().flat_map(|a| high.iter().map(move |b| (*a, *b))) {
                ways[a].push((b, there));
                ways[b].push((a, back));
            }
        }
        let distances = ways.iter().map(|_| OnceLock::new()).collect();
        Self { nodes, ways, distances }
    }

    /// Links from every vertex to `end`; cables run both ways, so that a search from `end` finds them.
    fn distances(&self, end: usize) -> &[u32] {
        self.distances[end].get_or_init(|| {
            let mut distances = vec![u32::MAX; self.ways.len()];
            distances[end] = 0;
            let mut queue = VecDeque::from([end]);
            while let Some(vertex) = queue.pop_front() {
                for (next, _) in &self.ways[vertex] {
                    if distances[*next] == u32::MAX {
                        distances[*next] = distances[vertex] + 1;
                        queue.push_back(*next);
                    }
                }
            }
            distances
        })
    }
}

impl Routes for Graph {
    fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) {
        let (start, end) = (self.nodes.port(from), self.nodes.port(to));
        let vertex = |(node, port): (usize, usize)| node * self.nodes.ports() + port;
        path.push(self.nodes.nic_out(start));
        let (mut at, goal) = (vertex(start), vertex(end));
        let last: Vec<&[u32]> = self.ways[goal].iter().map(|(last, _)| self.distances(*last)).collect();
        let distance = |vertex: usize| match vertex == goal {
            true => 0,
            false => 1 + last.iter().map(|distances| distances[vertex]).min().unwrap_or(u32::MAX - 1),
        };
        while at != goal {
            let here = distance(at);
            let nearer: Vec<&(usize, LinkId)> =
                self.ways[at].iter().filter(|(next, _)| distance(*next) + 1 == here).collect();
            let (next, link) = nearer[hash(from, to, at) % nearer.len()];
            path.push(*link);
            at = *next;
        }
        path.push(self.nodes.nic_in(end));
    }
}
