//! The bandwidth and latency that a group of ranks has: inside a node, between nodes, over a fabric.

use super::{FOUR_NODES, MESSAGE, close, four_nodes};
use trainwright_sim::network::{Placement, message_time};
use trainwright_spec::cluster::{Cluster, Rings, Wiring};
use trainwright_spec::units::Bytes;

#[test]
fn directly_wired_groups_have_the_links_among_them() {
    let mut cluster = four_nodes();
    cluster.node.interconnect.wiring = Wiring::Direct;
    for (ranks, gigabytes) in [(2, 100.0 / 3.0), (3, 200.0 / 3.0), (4, 100.0)] {
        let placement = Placement::new(&(0..ranks).collect::<Vec<_>>(), &cluster);
        assert!((placement.ring_bandwidth().get() / 1e9 - gigabytes).abs() < 1e-9, "{ranks} of 4 GPUs");
    }
    // 10 MB over one of three links: 300 µs.
    close(message_time(Bytes::new(10e6), 0, 1, &cluster), MESSAGE + 300.0, "message over one link");
    // As many links as there are rings: 2, 1 and 4 of 4.
    cluster.node.interconnect.rings = Some(Rings { through: vec![2, 1, 4], source: "test".into() });
    for (ranks, gigabytes) in [(2, 50.0), (3, 25.0), (4, 100.0)] {
        let placement = Placement::new(&(0..ranks).collect::<Vec<_>>(), &cluster);
        assert!((placement.ring_bandwidth().get() / 1e9 - gigabytes).abs() < 1e-9, "{ranks} of 4 GPUs");
    }
}

#[test]
fn renaming_ranks_changes_nothing() {
    let cluster = four_nodes();
    let sorted = Placement::new(&[0, 1, 6, 7, 9, 11], &cluster);
    assert_eq!(Placement::new(&[11, 0, 7, 9, 1, 6], &cluster), sorted);
    assert_eq!(Placement::new(&[2, 3, 4, 5, 8, 10], &cluster), sorted);
}

/// The usual groups of training: 8 tensor ranks in a node, and 8 data-parallel groups with one rank on each node.
#[test]
fn siblings_share_the_nics() {
    let mut cluster = Cluster::from_name("dgx-a100:4").unwrap();
    cluster.node.interconnect.efficiency.value = 0.8;
    cluster.node.nics.as_mut().unwrap().efficiency.value = 0.95;
    let tensor = Placement::new(&(0..8).collect::<Vec<_>>(), &cluster);
    assert_eq!((tensor.nodes, tensor.between), (1, None));
    assert!((tensor.ring_bandwidth().get() - 0.8 * 300e9).abs() < 1.0);
    let data = Placement::new(&[3, 11, 19, 27], &cluster);
    assert_eq!((data.nodes, data.ranks_per_node), (4, 1));
    assert!((data.ring_bandwidth().get() - 0.95 * 200e9 / 8.0).abs() < 1.0);
    // The eight groups move what one group of all 32 ranks with eight times the bytes would: as fast, but for the
    // steps and the part of the ring that stays in the node.
    let all = Placement::new(&(0..32).collect::<Vec<_>>(), &cluster);
    assert!((all.ring_bandwidth().get() / data.ring_bandwidth().get() - 8.0).abs() < 1e-9);
}

/// Four nodes of 40 GB/s on a fabric, two of their ranks as a group on some nodes: GB/s between them, and what a step
/// takes there in µs.
#[test]
fn the_fabric_leaves_what_it_can_carry() {
    let check = |fabric: &str, nodes: &[usize], bandwidth: f64, latency: f64| {
        let tables = "[fabric]\noversubscription = 4\npod_nodes = 2\n";
        let text = FOUR_NODES.replace(tables, "") + fabric;
        let cluster = Cluster::from_toml(&text, "fabric.toml").unwrap();
        let ranks: Vec<usize> = nodes.iter().flat_map(|node| [4 * node, 4 * node + 1]).collect();
        let between = Placement::new(&ranks, &cluster).between.unwrap();
        let case = format!("{nodes:?} on {fabric}");
        assert!((between.bandwidth.get() / 1e9 - bandwidth).abs() < 1e-9, "{case}: {}", between.bandwidth);
        close(between.latency, latency, &case);
    };
    // Half of a node's GPUs have half of its 40 GB/s.
    check("", &[0, 1, 2, 3], 20.0, 10.0);
    // Two levels, each link between switches 2 µs: two of them to the neighbour's leaf, four to the other pod.
    let levels = "[fabric]\nhop_latency = \"2 us\"\n[[fabric.fat_tree.levels]]\nnodes = 1\noversubscription = 1\n\
                  [[fabric.fat_tree.levels]]\nnodes = 2\noversubscription = 4\n";
    check(levels, &[0, 1], 20.0, 14.0);
    check(levels, &[0, 1, 2, 3], 10.0, 18.0);
    check(levels, &[0, 2], 5.0, 18.0);
    // A chain of switches, the middle one of 10 GB/s: the ring of all four nodes crosses it once in each direction,
    // with a quarter of the 40 GB/s of a node. So would the ring of nodes 1 and 3, but beside it that of 0 and 2 does.
    let cable = |ends: [&str; 2], bandwidth: usize| {
        format!(
            "[[fabric.links]]\nbetween = {ends:?}\nbandwidth = \"{bandwidth} GB/s\"\nlatency = \"3 us\"\n"
        )
    };
    let chain = [
        cable(["node0", "a"], 40),
        cable(["node1", "a"], 40),
        cable(["node2", "b"], 40),
        cable(["node3", "b"], 40),
        cable(["a", "b"], 10),
    ]
    .concat();
    check(&chain, &[0, 1], 20.0, 16.0);
    check(&chain, &[0, 1, 2, 3], 5.0, 19.0);
    check(&chain, &[1, 3], 2.5, 19.0);
}
