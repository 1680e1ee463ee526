//! Fewer nodes of a cluster, or fewer GPUs of one.

use super::check::check;
use super::{Cluster, Fabric, Shape, Wiring};
use crate::catalog::names;

impl Cluster {
    /// The same cluster with fewer of its nodes; a name `node:count` gets the new count. `None` if the nodes are of several
    /// kinds, or if the fabric is described for all of them alone.
    ///
    /// # Panics
    /// If that is no node, or more than there are.
    pub fn with_fewer_nodes(&self, nodes: usize) -> Option<Cluster> {
        assert!((1..=self.nodes).contains(&nodes), "{} has {} nodes, not {nodes}", self.name, self.nodes);
        if self.is_mixed() {
            return None;
        }
        let shape = match &self.fabric.shape {
            Shape::Torus(torus) => Shape::Torus(torus.of_nodes(nodes, self.node.gpus.value)),
            other => other.clone(),
        };
        let name = match self.name.strip_suffix(&format!(":{}", self.nodes)) {
            Some(node) => format!("{node}:{nodes}"),
            // A cluster of the catalog has a part by its name.
            None if nodes < self.nodes && names("clusters").contains(&self.name.as_str()) => {
                format!("{}:{nodes}", self.name)
            }
            None => self.name.clone(),
        };
        let part = Cluster { name, nodes, fabric: Fabric { shape, ..self.fabric.clone() }, ..self.clone() };
        check(&part).is_ok().then_some(part)
    }

    /// The first GPUs of one of its nodes, fewer than all; `None` if there are nodes of several kinds, or if neither links
    /// between pairs of GPUs nor PCIe join these.
    pub fn with_fewer_gpus(&self, gpus: usize) -> Option<Cluster> {
        let mut part = self.with_fewer_nodes(1)?;
        if !(1..part.node.gpus.value).contains(&gpus) {
            return None;
        }
        part.node.gpus.value = gpus;
        if let Wiring::Pairs(pairs) = &mut part.node.interconnect.wiring {
            pairs.links.retain(|[a, b, _]| *a.max(b) < gpus);
            let mut joined = vec![0];
            while let Some(next) =
                pairs.links.iter().find_map(|[a, b, _]| match (joined.contains(a), joined.contains(b)) {
                    (true, false) => Some(*b),
                    (false, true) => Some(*a),
                    _ => None,
                })
            {
                joined.push(next);
            }
            if joined.len() < gpus && part.node.host.is_none() {
                return None;
            }
        }
        check(&part).is_ok().then_some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn a_part_is_the_cluster_of_that_many_nodes() {
        for name in ["dgx-a100", "l40s-8-ethernet", "tpu-v5p-host"] {
            let all = Cluster::from_name(&format!("{name}:12")).unwrap();
            for nodes in [2, 7, 8, 12] {
                let expected = Cluster::from_name(&format!("{name}:{nodes}")).unwrap();
                assert_eq!(all.with_fewer_nodes(nodes).unwrap(), expected);
            }
        }
        for name in catalog::names("clusters") {
            let all = Cluster::from_name(name).unwrap();
            if let Some(half) =
                all.with_fewer_nodes(all.nodes.div_ceil(2)).filter(|half| half.nodes < all.nodes)
            {
                assert_eq!(half, Cluster::from_name(&format!("{name}:{}", half.nodes)).unwrap());
            }
        }
        assert_eq!(Cluster::from_name("dgx-h100:2+dgx-a100:3").unwrap().with_fewer_nodes(2), None);
    }

    #[test]
    fn links_that_name_their_nodes_have_no_part() {
        let link =
            |node| format!("{{ between = [\"node{node}\", \"leaf\"], bandwidth = \"1 GB/s\", latency = 0 }}");
        let links = [link(0), link(1)].join(", ");
        let text = format!("nodes = 2\nnode = \"dgx-h100\"\n[fabric]\nlinks = [{links}]\n");
        let two = Cluster::from_toml(&text, "two").unwrap();
        assert_eq!(two.with_fewer_nodes(2), Some(two.clone()));
        assert_eq!(two.with_fewer_nodes(1), None);
    }
}
