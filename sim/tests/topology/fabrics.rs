//! Routes through fabrics of switches, and the bandwidth of all their links, by hand.

use super::{check_path, close, cluster_with, halves, kinds, route, throughput};
use std::collections::BTreeSet;
use trainwright_sim::network::topology::{LinkId, LinkKind, Topology, Vertex};

/// Pods of two nodes under a core: 40 GB/s of NICs in a pod of 2 nodes, 40/r out of it.
#[test]
fn fat_trees_by_hand() {
    for ratio in [1.0, 2.0, 4.0] {
        let topology = Topology::new(&cluster_with(4, &format!("oversubscription = {ratio}\npod_nodes = 2")));
        close(throughput(&topology, halves(16)), 80.0 / (2.0 * ratio), &format!("bisection at 1:{ratio}"));
        assert_eq!(kinds(&topology, 0, 4), [0, 0, 2, 0], "within a pod");
        assert_eq!(kinds(&topology, 0, 15), [0, 0, 2, 2], "between pods");
        let (latency, bandwidth) = topology.path(&route(&topology, 0, 15));
        close(latency.get() * 1e6, 5.0 + 2.0 * 0.5, "a step of the NIC and two hops");
        close(bandwidth.get() / 1e9, 10.0_f64.min(40.0 / ratio), "a flow alone");
    }
    // Three levels: 1 node, 2 nodes at 1:2, 4 nodes at 1:4, of 8 nodes with 160 GB/s.
    let levels = "fat_tree.levels = [{ nodes = 1, oversubscription = 1 }, { nodes = 2, oversubscription = 2 }, \
                  { nodes = 4, oversubscription = 4 }]";
    let topology = Topology::new(&cluster_with(8, levels));
    for (to, fabric) in [(4, 2), (8, 4), (16, 6)] {
        assert_eq!(kinds(&topology, 0, to), [0, 0, 2, fabric], "0 to {to}");
    }
    close(throughput(&topology, halves(32)), 160.0 / (2.0 * 4.0), "bisection");
    let uplinks = |level: usize| -> f64 {
        let starts = |vertex: &Vertex| matches!(vertex, Vertex::Switch { level: at, .. } if *at == level);
        let up = topology.links().iter().filter(|link| link.kind == LinkKind::Fabric && starts(&link.from));
        let up = up.filter(|link| matches!(link.to, Vertex::Switch { level: at, .. } if at == level + 1));
        up.map(|link| link.bandwidth.get() / 1e9).sum()
    };
    for (level, total) in [(0, 160.0), (1, 80.0), (2, 40.0)] {
        close(uplinks(level), total, &format!("all uplinks of level {level}"));
    }
}

#[test]
fn single_uplinks_add_up_to_the_pipe_and_are_all_used() {
    let cluster = cluster_with(8, "fat_tree.levels = [{ nodes = 4, oversubscription = 2, uplinks = 4 }]");
    let topology = Topology::new(&cluster);
    let fabric: Vec<f64> = topology
        .links()
        .iter()
        .filter(|link| link.kind == LinkKind::Fabric)
        .map(|link| link.bandwidth.get() / 1e9)
        .collect();
    // Two pods of 4 nodes with 80 GB/s of NICs: 40 GB/s each way in four links.
    assert_eq!(fabric, [10.0; 16]);
    let used: BTreeSet<LinkId> = halves(32).map(|(from, to)| route(&topology, from, to)[1]).collect();
    assert_eq!(used.len(), 4);
    for (from, to) in halves(32) {
        check_path(&topology, &cluster, from, to);
    }
}

#[test]
fn traffic_of_one_rail_stays_off_the_spines() {
    let cluster = cluster_with(8, "rail_optimised = { pod_nodes = 4, oversubscription = 2 }");
    let topology = Topology::new(&cluster);
    // GPUs 0 and 1 of a node are on rail 0, GPUs 2 and 3 on rail 1.
    assert_eq!(kinds(&topology, 0, 5), [0, 0, 2, 0], "same rail");
    assert_eq!(kinds(&topology, 0, 6), [2, 0, 2, 0], "over NVLink to the other rail");
    assert_eq!(kinds(&topology, 0, 17), [0, 0, 2, 2], "same rail, other pod");
    assert_eq!(kinds(&topology, 0, 18), [2, 0, 2, 2], "other rail, other pod");
    // GPU 1 hands over to GPU 3, the second of rail 1.
    let handed = topology.link(route(&topology, 1, 6)[1]).to.clone();
    assert_eq!(handed, Vertex::Gpu(3));
    // 160 GB/s of NICs: half of them send, at half of their rate.
    close(throughput(&topology, halves(32)), 40.0, "bisection at 1:2");
    for (from, to) in (0..32).flat_map(|from| (0..32).map(move |to| (from, to))) {
        check_path(&topology, &cluster, from, to);
    }
    let bridged = cluster_with(4, "rail_optimised = { pod_nodes = 4 }");
    let mut pcie = bridged.clone();
    pcie.node.interconnect.wiring =
        trainwright_spec::cluster::Wiring::Bridges(trainwright_spec::cluster::Bridges {
            gpus_per_switch: None,
            gpus_per_socket: None,
            between_sockets: None,
        });
    assert_eq!(kinds(&Topology::new(&pcie), 0, 6), [0, 0, 2, 2], "without NVLink the spines join rails");
}

/// Two nodes at a router, two routers in a group, three groups: 12 nodes with 240 GB/s.
#[test]
fn dragonflies_by_hand() {
    let text = |routing: &str| {
        format!(
            "dragonfly = {{ nodes_per_router = 2, routers_per_group = 2, global_oversubscription = 2, routing = \"{routing}\" }}"
        )
    };
    let cluster = cluster_with(12, &text("minimal"));
    let topology = Topology::new(&cluster);
    assert_eq!(kinds(&topology, 0, 4), [0, 0, 2, 0], "one router");
    assert_eq!(kinds(&topology, 0, 8), [0, 0, 2, 1], "one group");
    let mut hops = BTreeSet::new();
    for (from, to) in (0..48).flat_map(|from| (0..48).map(move |to| (from, to))) {
        check_path(&topology, &cluster, from, to);
        assert_eq!(kinds(&topology, from, to), kinds(&topology, to, from), "{from} and {to}");
        hops.insert(kinds(&topology, from, to)[3]);
    }
    assert_eq!(hops, BTreeSet::from([0, 1, 2, 3]));
    // Three couples of groups, each way the half of 80/2 GB/s; three couples of routers, each way 40 GB/s.
    let mut fabric: Vec<f64> = topology
        .links()
        .iter()
        .filter(|link| link.kind == LinkKind::Fabric)
        .map(|link| link.bandwidth.get() / 1e9)
        .collect();
    fabric.sort_by(f64::total_cmp);
    assert_eq!(fabric, [[20.0; 6], [40.0; 6]].concat());

    let adaptive = Topology::new(&cluster_with(12, &text("adaptive")));
    assert_eq!(kinds(&adaptive, 0, 4), [0, 0, 2, 0], "one router");
    assert_eq!(kinds(&adaptive, 0, 8), [0, 0, 2, 2], "out of a router and into another");
    assert_eq!(kinds(&adaptive, 0, 47), [0, 0, 2, 4], "also out of a group and into another");
    // From each group to the next, all GPUs: 80/2 GB/s out of each of three.
    close(throughput(&adaptive, (0..48).map(|gpu| (gpu, (gpu + 16) % 48))), 120.0, "global links");
}

#[test]
fn a_fabric_of_single_links_takes_the_shortest_ways() {
    let cluster = cluster_with(
        4,
        r#"links = [
  { between = ["node0", "leaf0"], bandwidth = "20 GB/s", latency = 0 },
  { between = ["node1", "leaf0"], bandwidth = "20 GB/s", latency = 0 },
  { between = ["node2", "leaf1"], bandwidth = "20 GB/s", latency = 0 },
  { between = ["node3.nic0", "leaf1"], bandwidth = "10 GB/s", latency = 0 },
  { between = ["node3.nic1", "leaf1"], bandwidth = "10 GB/s", latency = 0 },
  { between = ["leaf0", "spine0"], bandwidth = "5 GB/s", latency = "1 us" },
  { between = ["leaf1", "spine0"], bandwidth = "5 GB/s", latency = "1 us" },
  { between = ["leaf0", "spine1"], bandwidth = "5 GB/s", latency = "1 us" },
  { between = ["leaf1", "spine1"], bandwidth = "5 GB/s", latency = "1 us" },
]"#,
    );
    let topology = Topology::new(&cluster);
    assert_eq!(kinds(&topology, 0, 4), [0, 0, 2, 2], "over a leaf");
    assert_eq!(kinds(&topology, 0, 12), [0, 0, 2, 4], "over a spine");
    let (latency, bandwidth) = topology.path(&route(&topology, 0, 12));
    close(latency.get() * 1e6, 5.0 + 2.0, "the NIC and two links of the spine");
    close(bandwidth.get() / 1e9, 5.0, "a link to a spine");
    let spines: BTreeSet<String> =
        halves(16).map(|(from, to)| topology.link(route(&topology, from, to)[2]).to.to_string()).collect();
    assert_eq!(spines, BTreeSet::from(["spine0".to_string(), "spine1".to_string()]));
    let last = route(&topology, 0, 15);
    assert_eq!(topology.link(last[last.len() - 2]).to.to_string(), "node3.nic1");
}
