//! A part of a cluster: what is left of it after GPUs are gone, as the planner's question needs it.

use trainwright_spec::cluster::{Cluster, Fabric, Shape};
use trainwright_spec::sourced::Sourced;

/// A cluster with that many of its GPUs, on as few nodes as have them and equally many on each; `None` if no such cluster can
/// be described: nodes of several kinds, numbers that no nodes share equally, or GPUs that no link joins.
pub fn part(cluster: &Cluster, gpus: usize) -> Option<Cluster> {
    let (all, per_node) = (cluster.gpus(), cluster.node.gpus.value);
    if gpus == all {
        return Some(cluster.clone());
    }
    let nodes = gpus.div_ceil(per_node);
    if cluster.is_mixed() || nodes == 0 || nodes > cluster.nodes || !gpus.is_multiple_of(nodes) {
        return None;
    }
    let mut part = Cluster { name: format!("{gpus} GPUs of {}", cluster.name), nodes, ..cluster.clone() };
    if gpus / nodes != per_node {
        let source = format!("{gpus} of the {all} GPUs of {}", cluster.name);
        part.node.gpus = Sourced::new(gpus / nodes, source);
        let node = &mut part.node;
        node.interconnect.keep_first(gpus / nodes, per_node);
        node.host.as_mut().into_iter().for_each(|host| host.keep_first(gpus / nodes, per_node));
        // A profile holds for the number of GPUs with which it was measured.
        part.profile = None;
    }
    if let Shape::Torus(torus) = &cluster.fabric.shape {
        let shape = Shape::Torus(torus.of_nodes(nodes, gpus / nodes));
        part.fabric = Fabric { shape, ..cluster.fabric.clone() };
    }
    is_valid(&part).then_some(part)
}

/// Whether a file with that cluster would be accepted.
fn is_valid(cluster: &Cluster) -> bool {
    toml::to_string(cluster).is_ok_and(|text| Cluster::from_toml(&text, &cluster.name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::cluster::Wiring;

    #[test]
    fn a_part_has_equally_many_gpus_on_each_of_the_fewest_nodes() {
        let check = |name: &str, gpus, expected: Option<[usize; 2]>| {
            let part = part(&Cluster::from_name(name).unwrap(), gpus);
            let shape = part.as_ref().map(|part| [part.nodes, part.node.gpus.value]);
            assert_eq!(shape, expected, "{gpus} of {name}");
            assert!(part.is_none_or(|part| part.gpus() == gpus));
        };
        check("dgx-a100", 8, Some([1, 8]));
        check("dgx-a100", 7, Some([1, 7]));
        check("dgx-a100:2", 8, Some([1, 8]));
        check("dgx-a100:2", 14, Some([2, 7]));
        check("a100-pcie-4-bridged:1", 3, Some([1, 3]));
        check("a100-pcie-4-bridged:1", 1, Some([1, 1]));
        check("h100-pcie-pair:1", 1, Some([1, 1]));
        // Unequal nodes, more nodes than there are, more than all, none.
        check("dgx-a100:2", 15, None);
        check("dgx-a100:4", 31, None);
        check("dgx-a100", 9, None);
        check("dgx-a100", 0, None);
        check("dgx-h100:1+dgx-a100:1", 8, None);
    }

    #[test]
    fn a_link_keeps_its_bandwidth() {
        let whole = Cluster::from_name("a100-pcie-4-bridged:1").unwrap();
        let of = |cluster: &Cluster, gpus| {
            let medium = &cluster.node.interconnect;
            medium.bandwidth.value.get() / medium.wiring.links(gpus) as f64
        };
        let part = part(&whole, 3).unwrap();
        assert_eq!(of(&part, 3), of(&whole, 4));
        let Wiring::Pairs(pairs) = &part.node.interconnect.wiring else { panic!("it has bridges") };
        assert_eq!(pairs.links, [[0, 1, 12]]);
        // Four GPUs with 6 links to each of the others: a pair has 6 of a GPU's 18.
        let mesh = self::part(&Cluster::from_name("alps-gh200:1").unwrap(), 2).unwrap().node.interconnect;
        assert_eq!((mesh.bandwidth.value.get(), mesh.links.map(|links| links.value)), (150e9, Some(6)));
        // A GPU has 18 links; eight have the bandwidth of those that join four.
        let whole = Cluster::from_name("h200-nvl-8:1").unwrap();
        let part = self::part(&whole, 4).unwrap().node.interconnect;
        assert_eq!(part.bandwidth, whole.node.interconnect.bandwidth);
        let Wiring::Pairs(pairs) = &part.wiring else { panic!("it has bridges") };
        assert_eq!(pairs.links.len(), 6);
    }
}
