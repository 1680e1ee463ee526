//! Fat trees: groups of nodes within groups of nodes, each with its uplinks.
//!
//! ```text
//!            core
//!     up ╱╲ down   ╲╲
//!   level 1        …        one pipe each way with the bandwidth of all its uplinks together,
//!  ╱╱    ╲╲                 or as many equal links as `uplinks` says
//! level 0  level 0
//! NICs     NICs
//! ```

use super::graph::{Routes, Vertex, hash};
use super::node::Nodes;
use super::site::Site;
use crate::flow::LinkId;
use std::sync::Arc;
use trainwright_spec::cluster::FatTree;

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Arc<Nodes>,
    levels: Vec<Tier>,
}

#[derive(Debug)]
struct Tier {
    /// Nodes in a group.
    nodes: usize,
    /// Links up from a group, and as many down.
    uplinks: usize,
    /// The first link: for each group and uplink one up, one down.
    first: usize,
}

impl Tree {
    /// The uplinks of a group of n nodes carry n × injection / oversubscription together.
    pub fn new(tree: &FatTree, mut site: Site) -> Self {
        let nodes = site.nodes.clone();
        let total = site.cluster.nodes;
        let leaf = tree.levels[0].nodes.value;
        for (node, port) in (0..total).flat_map(|node| (0..nodes.ports()).map(move |port| (node, port))) {
            let switch = Vertex::Switch { level: 0, index: node / leaf };
            nodes.attach((node, port), &switch, site.links);
        }
        let mut levels = Vec::new();
        for (index, level) in tree.levels.iter().enumerate() {
            let size = level.nodes.value;
            let above = tree.levels.get(index + 1).map_or(total.max(size), |above| above.nodes.value);
            let uplinks = level.uplinks.as_ref().map_or(1, |uplinks| uplinks.value);
            let first = site.links.len();
            for group in 0..total.div_ceil(size) {
                let bandwidth = site.injection(site.members(group, size)) / level.oversubscription.value;
                let low = Vertex::Switch { level: index, index: group };
                let high = Vertex::Switch { level: index + 1, index: group * size / above };
                for _ in 0..uplinks {
                    site.join(low.clone(), high.clone(), bandwidth / uplinks as f64);
                }
            }
            levels.push(Tier { nodes: size, uplinks, first });
        }
        Self { nodes, levels }
    }
}

impl Routes for Tree {
    fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) {
        let (start, end) = (self.nodes.port(from), self.nodes.port(to));
        path.push(self.nodes.nic_out(start));
        let apart = |tier: &Tier| start.0 / tier.nodes != end.0 / tier.nodes;
        let crossed = self.levels.iter().take_while(|tier| apart(tier)).count();
        let uplink = |level: usize, node: usize| {
            let tier = &self.levels[level];
            let chosen = hash(from, to, level) % tier.uplinks;
            (tier.first + 2 * (node / tier.nodes * tier.uplinks + chosen)) as u32
        };
        path.extend((0..crossed).map(|level| LinkId(uplink(level, start.0))));
        path.extend((0..crossed).rev().map(|level| LinkId(uplink(level, end.0) + 1)));
        path.push(self.nodes.nic_in(end));
    }
}
