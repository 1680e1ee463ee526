//! The inputs from which a fabric is built.

use super::graph::{Link, LinkKind, Vertex, add};
use super::node::Nodes;
use crate::flow::LinkId;
use std::sync::Arc;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// The inputs from which a fabric is built.
pub(super) struct Site<'a> {
    pub cluster: &'a Cluster,
    pub nodes: Arc<Nodes>,
    pub links: &'a mut Vec<Link>,
}

impl Site<'_> {
    /// Two links of the fabric between `low` and `high`, up first.
    pub fn join(&mut self, low: Vertex, high: Vertex, bandwidth: BytesPerSecond) -> [LinkId; 2] {
        let latency = self.cluster.fabric.hop_latency.as_ref().map_or(Seconds::ZERO, |latency| latency.value);
        let link = |from, to| Link { bandwidth, latency, kind: LinkKind::Fabric, from, to };
        [add(self.links, link(low.clone(), high.clone())), add(self.links, link(high, low))]
    }

    /// Bandwidth of the NICs of `nodes` nodes together.
    pub fn injection(&self, nodes: usize) -> BytesPerSecond {
        self.nodes.injection() * nodes as f64
    }

    /// Nodes of group `index` when groups hold `size` nodes; the last may be smaller.
    pub fn members(&self, index: usize, size: usize) -> usize {
        size.min(self.cluster.nodes - index * size)
    }
}
