//! Rings of the links between pairs.

use super::{close, route};
use std::collections::{BTreeMap, BTreeSet};
use trainwright_sim::network::topology::{LinkId, LinkKind, Topology};
use trainwright_spec::cluster::Cluster;

/// A link of the cube mesh has 25 GB/s. All-reduces of 1 GiB that vTrain measured (VIA-Research/vTrain trace/v100)
/// reach 45.1, 45.7, 87.0 and 134.5 GB/s over 3, 6, 7 and 8 GPUs: within 10 % what the rings found reach together.
#[test]
fn rings_of_the_hybrid_cube_mesh() {
    let cluster = Cluster::from_name("dgx-1v").unwrap();
    let (topology, efficiency) = (Topology::new(&cluster), cluster.node.interconnect.efficiency.value);
    let check = |group: &[usize], rings: usize, measured: Option<f64>| {
        let found = topology.rings(group).unwrap();
        assert_eq!((found.cycles.len(), found.kind), (rings, LinkKind::Interconnect), "{group:?}");
        let each = found.bandwidth.get() / 1e9;
        close(each, 25.0 * efficiency, "one link");
        if let Some(measured) = measured {
            let error = (rings as f64 * each / measured - 1.0).abs();
            assert!(error < 0.1, "{group:?}: {} for {measured} GB/s", rings as f64 * each);
        }
        check_disjoint(&topology, &found.cycles, group, found.bandwidth.get());
    };
    check(&[0, 1], 1, None);
    check(&[0, 3], 2, None);
    check(&[0, 1, 2], 2, Some(45.14));
    check(&[0, 1, 2, 3], 4, None);
    check(&[0, 1, 2, 3, 4, 5], 2, Some(45.74));
    check(&[0, 1, 2, 3, 4, 5, 6], 4, Some(87.01));
    check(&[0, 1, 2, 3, 4, 5, 6, 7], 6, Some(134.51));
    // GPU 4 has links to 0 alone: no ring, so PCIe.
    let over_pcie = topology.rings(&[0, 1, 2, 3, 4]).unwrap();
    assert_eq!((over_pcie.cycles.len(), over_pcie.kind), (1, LinkKind::Host));
    assert!(topology.rings(&[3]).is_none());
    let two_nodes = Topology::new(&Cluster::from_name("dgx-1v:2").unwrap());
    assert!(two_nodes.rings(&[7, 8]).is_none());
    assert_eq!(two_nodes.rings(&[8, 9, 10]).unwrap().cycles.len(), 2);
}

/// No link carries more rings than it has parts, and each ring visits the group.
fn check_disjoint(topology: &Topology, cycles: &[Vec<usize>], group: &[usize], each: f64) {
    let mut rings: BTreeMap<LinkId, usize> = BTreeMap::new();
    for cycle in cycles {
        assert_eq!(cycle.iter().collect::<BTreeSet<_>>(), group.iter().collect());
        for (index, from) in cycle.iter().enumerate() {
            let path = route(topology, *from, cycle[(index + 1) % cycle.len()]);
            assert_eq!(path.len(), 1, "{from} has a separate link to the next of {cycle:?}");
            *rings.entry(path[0]).or_default() += 1;
        }
    }
    for (id, rings) in rings {
        assert!(rings as f64 <= topology.link(id).bandwidth.get() / each + 1e-9);
    }
}

#[test]
fn rings_of_other_nodes() {
    // Published bandwidth of all rings together, in GB/s.
    let check = |name: &str, gpus: usize, rings: usize, gigabytes: f64| {
        let cluster = Cluster::from_name(name).unwrap();
        let found = Topology::new(&cluster).rings(&(0..gpus).collect::<Vec<_>>()).unwrap();
        assert_eq!(found.cycles.len(), rings, "{name}");
        let node = &cluster.node;
        let medium = match (&node.host, found.kind) {
            (Some(host), LinkKind::Host) => host,
            _ => &node.interconnect,
        };
        let published = found.bandwidth.get() / medium.efficiency.value;
        close(published / 1e9 * rings as f64, gigabytes, name);
    };
    check("dgx-a100", 8, 1, 300.0);
    // 4 links between each two of 4 GPUs: all 12 of a GPU; of 2 GPUs 4.
    check("perlmutter-a100", 4, 12, 300.0);
    check("perlmutter-a100", 2, 4, 100.0);
    check("jean-zay-v100", 4, 6, 150.0);
    check("mi300x-8", 8, 7, 448.0);
    check("a100-pcie-4-bridged", 2, 12, 300.0);
    // Between the pairs there is only PCIe.
    check("a100-pcie-4-bridged", 4, 1, 31.5);
    check("p100-pcie-8", 8, 1, 15.75);
    // Dies 0, 1 and 2 have no ring, and no PCIe is described: 1 to 2 goes over another die, on single links.
    check("frontier-mi250x", 3, 1, 50.0);
    // A ring around the 2 by 2 chips of a host, each way, of 45 GB/s.
    check("tpu-v4-host", 4, 2, 90.0);
}

#[test]
fn rings_along_a_torus() {
    let cluster = Cluster::from_name("tpu-v5e-pod").unwrap();
    let topology = Topology::new(&cluster);
    // A row of 16: chips 0 and 1 of the hosts 0 to 7; one ring each way.
    let row: Vec<usize> = (0..8).flat_map(|host| [4 * host, 4 * host + 1]).collect();
    let found = topology.rings(&row).unwrap();
    assert_eq!(found.cycles.len(), 2);
    close(found.bandwidth.get() / 1e9, 50.0 * cluster.node.interconnect.efficiency.value, "one link");
    // Half of the row is a line, on which a ring has to come back the way it went.
    assert_eq!(topology.rings(&row[..8]).unwrap().cycles, [row[..8].to_vec()]);
}

/// The measured rings of each interconnect of the catalog are those that a search finds in its wiring for the
/// first GPUs of a node, and for two that two links join. The first five, not measured, have a ring over PCIe only.
#[test]
fn the_catalog_counts_the_rings_that_its_wiring_has() {
    let cluster = Cluster::from_name("dgx-1v").unwrap();
    let topology = Topology::new(&cluster);
    for (size, said) in (2..).zip(&cluster.node.interconnect.rings.as_ref().unwrap().through) {
        let group = if size == 2 { vec![0, 3] } else { (0..size).collect() };
        let rings = topology.rings(&group).unwrap();
        match size {
            5 => assert_eq!(rings.kind, LinkKind::Host),
            _ => assert_eq!((rings.kind, rings.cycles.len()), (LinkKind::Interconnect, *said), "{size} GPUs"),
        }
    }
}
