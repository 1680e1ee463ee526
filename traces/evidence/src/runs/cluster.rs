//! The cluster that a row describes: the catalog's node that is most like it, with the row's numbers in place.

use super::{NoPlan, Run};
use std::collections::HashMap;
use std::sync::LazyLock;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, Gpu, Node, Wiring};
use trainwright_spec::units::BytesPerSecond;

/// Every node of the catalog, read once for all rows.
pub(super) static NODES: LazyLock<Vec<Node>> = LazyLock::new(|| {
    catalog::names("nodes").into_iter().filter_map(|name| Node::from_name(name).ok()).collect()
});

/// Other names of networks, and the catalog's.
const NETWORKS: [(&str, &str); 4] =
    [("ib", "infiniband"), ("omnipath", "omni-path"), ("opa", "omni-path"), ("tcp/ip", "tcp")];

/// One of each of these nodes by its name, or why there is none.
static CLUSTERS: LazyLock<HashMap<&'static str, Result<Cluster, String>>> = LazyLock::new(|| {
    let cluster = |node: &Node| Cluster::from_name(&node.name).map_err(|error| error.to_string());
    NODES.iter().map(|node| (node.name.as_str(), cluster(node))).collect()
});

impl Run {
    /// Nodes of the catalog with the row's GPUs, with the row's GPUs per node and NIC bandwidth.
    ///
    /// Of several nodes with this GPU the most similar one counts: by links within the node, links between nodes,
    /// bandwidth, and number of GPUs, in this order.
    ///
    /// # Errors
    /// `Unsupported` for a GPU of no node of the catalog, `Invalid` for GPUs that do not fill their nodes.
    pub fn cluster(&self) -> Result<Cluster, NoPlan> {
        let gpus = self.gpus.ok_or_else(|| NoPlan::missing("gpus"))?;
        let mut node = self.node()?;
        let host = node.gpus.value;
        if node.nics.is_none() && gpus > host && gpus.is_multiple_of(host) {
            // Hosts on a torus of their GPUs' links: what a table calls a node is a part of the torus.
            if let Ok(torus) = Cluster::from_name(&format!("{}:{}", node.name, gpus / host)) {
                return Ok(torus);
            }
        }
        let per_node = match self.rack() {
            // A rack is one NVLink domain, of which a job has an even part.
            Some(_) => {
                (1..=node.gpus.value.min(gpus)).rev().find(|size| gpus.is_multiple_of(*size)).unwrap_or(1)
            }
            None => self.gpus_per_node.unwrap_or(node.gpus.value).min(gpus),
        };
        if !gpus.is_multiple_of(per_node) {
            let message = format!("`gpus` is {gpus}; they do not fill nodes of {per_node} (`gpus_per_node`)");
            return Err(NoPlan::Invalid(message));
        }
        if per_node < host {
            node.interconnect.keep_first(per_node, host);
            node.host.iter_mut().for_each(|links| links.keep_first(per_node, host));
        }
        node.gpus.value = per_node;
        if let (Some(nics), Some(gigabits)) = (&mut node.nics, self.node_network_gbps)
            && gigabits > 0.0
        {
            let real_nodes = self.gpus_per_node.map_or(1.0, |size| per_node as f64 / size.min(gpus) as f64);
            let bandwidth = gigabits * real_nodes.max(1.0) * 1e9 / 8.0 / nics.count.value as f64;
            nics.bandwidth.value = BytesPerSecond::new(bandwidth);
        }
        let nodes = gpus / per_node;
        let name = format!("{}:{nodes}", node.name);
        // The catalog's cluster of this node, with another number of nodes.
        let cluster = CLUSTERS[node.name.as_str()].clone().map_err(NoPlan::Invalid)?;
        Ok(Cluster { name, nodes, node, ..cluster })
    }

    /// The row's GPU, if a node of the catalog has it.
    pub(super) fn known_gpu(&self) -> Option<&'static Gpu> {
        NODES.iter().map(|node| &node.gpu).find(|gpu| gpu.name == self.gpu)
    }

    /// GPUs of the rack that is one NVLink domain, from its name: 72 of `nvl72`; `None` for other links.
    fn rack(&self) -> Option<usize> {
        self.intra_node.to_lowercase().strip_prefix("nvl")?.parse().ok()
    }

    fn node(&self) -> Result<Node, NoPlan> {
        if self.gpu.is_empty() {
            return Err(NoPlan::missing("gpu"));
        }
        self.nodes()
            .min_by(|one, other| self.distance(one).total_cmp(&self.distance(other)))
            .cloned()
            .ok_or_else(|| NoPlan::Unsupported(format!("no node of the catalog has the GPU `{}`", self.gpu)))
    }

    /// Whether the GPUs of a node are linked as the row says; yes if it says nothing.
    pub(super) fn is_linked(&self, node: &Node) -> bool {
        let kind = &node.interconnect.kind;
        let nvlink = kind.starts_with("nvlink");
        match (self.intra_node.to_lowercase().as_str(), self.rack()) {
            ("", _) => true,
            (_, Some(gpus)) => node.gpus.value == gpus,
            ("nvswitch", _) => nvlink && matches!(node.interconnect.wiring, Wiring::Switched),
            ("nvlink", _) => nvlink,
            ("pcie", _) => !nvlink,
            (word, _) => kind.starts_with(word),
        }
    }

    /// Whether nodes of this kind have the row's network between them; yes if it says nothing, no of nodes without NICs.
    pub(super) fn is_networked(&self, node: &Node) -> bool {
        let Some(nics) = &node.nics else { return false };
        let word = self.inter_node.to_lowercase().replace([' ', '_'], "-");
        let known = NETWORKS.iter().find(|(name, _)| *name == word);
        let word = known.map_or(word.as_str(), |(_, network)| *network);
        nics.kind.starts_with(word) || nics.kind.split('-').any(|part| part == word)
    }

    /// The catalog's nodes with the row's GPU.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &'static Node> {
        NODES.iter().filter(|node| node.gpu.name == self.gpu)
    }

    /// Dissimilarity of a catalog node and the row's node.
    fn distance(&self, node: &Node) -> f64 {
        let switched = matches!(node.interconnect.wiring, Wiring::Switched);
        let inside = !self.is_linked(node);
        let between = match node.nics {
            Some(_) => !self.is_networked(node),
            None => self.gpus > self.gpus_per_node,
        };
        let bandwidth = match (&node.nics, self.node_network_gbps) {
            (Some(nics), Some(gigabits)) if gigabits > 0.0 => {
                let catalog = nics.bandwidth.value.get() * nics.count.value as f64 * 8.0 / 1e9;
                libm::log2(catalog / gigabits).abs()
            }
            _ => 0.0,
        };
        let size =
            self.gpus_per_node.map_or(0.0, |size| libm::log2(size as f64 / node.gpus.value as f64).abs());
        // Links between pairs of GPUs are of one node size only.
        let cut = !switched && self.gpus_per_node.is_some_and(|size| size != node.gpus.value);
        1000.0 * f64::from(inside)
            + 500.0 * f64::from(cut)
            + 100.0 * f64::from(between)
            + 10.0 * bandwidth
            + size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalog's node and GPUs per node of 256 GPUs.
    fn node(gpu: &str, intra_node: &str, gpus_per_node: usize) -> (String, usize) {
        let run = Run {
            gpu: gpu.into(),
            gpus: Some(256),
            gpus_per_node: Some(gpus_per_node),
            intra_node: intra_node.into(),
            inter_node: "infiniband".into(),
            ..Run::default()
        };
        let node = run.cluster().unwrap().node;
        (node.name, node.gpus.value)
    }

    #[test]
    fn a_rack_has_as_many_gpus_as_its_name_says() {
        // 64 is the largest part of a rack of 72 that divides 256 GPUs, 32 that of a rack of 36.
        assert_eq!(node("gb200", "nvl72", 4), ("gb200-nvl72".into(), 64));
        assert_eq!(node("gb200", "NVL36", 4), ("gb200-nvl36".into(), 32));
        assert_eq!(node("gb300", "nvl72", 4), ("gb300-nvl72".into(), 64));
    }

    /// The node has the stated network and links, where the catalog has such a node with this GPU.
    #[test]
    fn a_stated_network_decides_between_nodes() {
        let check = |gpu: &str, intra_node: &str, inter_node: &str, expected: &str| {
            let run = Run {
                gpu: gpu.into(),
                gpus: Some(16),
                gpus_per_node: Some(8),
                intra_node: intra_node.into(),
                inter_node: inter_node.into(),
                ..Run::default()
            };
            let node = run.cluster().unwrap().node;
            assert_eq!(node.name, expected, "{gpu}, {intra_node}, {inter_node}");
        };
        check("a100-40gb-sxm", "", "ethernet", "a100-ethernet");
        check("a100-40gb-sxm", "", "EFA", "aws-p4d");
        check("a100-40gb-sxm", "nvswitch", "roce", "oci-bm-gpu4-8");
        check("h100-80gb-sxm", "NVSwitch", "IB", "azure-nd-h100-v5");
        check("h100-80gb-sxm", "", "InfiniBand NDR", "azure-nd-h100-v5");
        check("h100-80gb-sxm", "", "tcpx", "gcp-a3-high");
        check("h100-80gb-sxm", "", "gpudirect-tcpxo", "gcp-a3-mega");
        check("l40s", "pcie", "tcp", "l40s-8-ethernet");
        check("l40s", "pcie4", "efa", "aws-g6e");
        check("v100-32gb-sxm2", "nvlink", "roce", "dgx-1v-roce");
    }

    #[test]
    fn v100s_with_16_gb_are_in_nodes_of_four_or_eight() {
        assert_eq!(node("v100-16gb-sxm2", "nvlink", 4), ("jean-zay-v100-16gb".into(), 4));
        assert_eq!(node("v100-16gb-sxm2", "nvlink", 8), ("aws-p3".into(), 8));
    }
}
