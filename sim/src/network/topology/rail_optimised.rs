//! Rail-optimised fabrics: NIC i of all nodes of a pod at one leaf switch, spines between the leaves.
//!
//! ```text
//!              spines (one vertex)
//!   leaf of rail 0    leaf of rail 1     … in every pod
//!    │ nic0 of every    │ nic1 of every
//!    │ node             │ node
//! ```
//!
//! A message for another rail first goes over the GPUs' links to the GPU of its node that is on that rail
//! (NCCL's PXN), so that within a pod it stays off the spines.

use super::graph::{Routes, Vertex};
use super::node::Nodes;
use super::site::Site;
use crate::flow::LinkId;
use std::sync::Arc;
use trainwright_spec::cluster::RailOptimised;

#[derive(Debug)]
pub(super) struct Rails {
    nodes: Arc<Nodes>,
    pod_nodes: usize,
    /// The first link of the leaves: for each pod and rail one up, one down.
    first: usize,
}

impl Rails {
    /// The uplinks of a leaf at n NICs carry n × bandwidth of a NIC / oversubscription.
    pub fn new(rails: &RailOptimised, mut site: Site) -> Self {
        let nodes = site.nodes.clone();
        let (pod_nodes, ports, first) = (rails.pod_nodes.value, nodes.ports(), site.links.len());
        let leaf = |pod: usize, rail: usize| Vertex::Switch { level: 0, index: pod * ports + rail };
        for pod in 0..site.cluster.nodes.div_ceil(pod_nodes) {
            for rail in 0..ports {
                let members = site.members(pod, pod_nodes);
                let bandwidth = nodes.port_bandwidth() * members as f64 / rails.oversubscription.value;
                site.join(leaf(pod, rail), Vertex::Switch { level: 1, index: 0 }, bandwidth);
                for node in pod * pod_nodes..pod * pod_nodes + members {
                    nodes.attach((node, rail), &leaf(pod, rail), site.links);
                }
            }
        }
        Self { nodes, pod_nodes, first }
    }

    fn up(&self, (node, rail): (usize, usize)) -> u32 {
        (self.first + 2 * (node / self.pod_nodes * self.nodes.ports() + rail)) as u32
    }
}

impl Routes for Rails {
    fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) {
        let end = self.nodes.port(to);
        let mut start = self.nodes.port(from);
        if start.1 != end.1
            && let Some(relay) = self.nodes.relay(from, end.1)
        {
            self.nodes.route(from, relay, path);
            start = self.nodes.port(relay);
        }
        path.push(self.nodes.nic_out(start));
        let (up, down) = (self.up(start), self.up(end));
        if up != down {
            path.extend([LinkId(up), LinkId(down + 1)]);
        }
        path.push(self.nodes.nic_in(end));
    }
}
