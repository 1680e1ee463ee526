//! Bandwidth of groups over a topology, against that of its graph and by hand.

use super::{close, cluster_with, route};
use trainwright_sim::network::topology::Topology;
use trainwright_sim::network::{Algorithm, Call, Direct, Placement, Protocol, collective_time};
use trainwright_spec::catalog;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind::{AllGather, AllReduce, AllToAll, SendReceive};
use trainwright_spec::units::Bytes;

/// Large messages alone take what the graph of the cluster carries: a message between two GPUs of a node the width of its
/// way, a ring through them what the disjoint rings of the graph carry. Where
/// rings were measured, those count instead.
#[test]
fn groups_in_a_node_have_what_its_graph_carries() {
    let mut compared = 0;
    for name in catalog::names("nodes") {
        let cluster = Cluster::from_name(name).unwrap();
        let gpus = cluster.gpus();
        if gpus == 1 || cluster.node.interconnect.rings.is_some() {
            continue;
        }
        let topology = Topology::new(&cluster);
        let pair = Placement::new(&[0, 1], &cluster).pair;
        let (_, way) = topology.path(&route(&topology, 0, 1));
        close(pair.get() / 1e9, way.get() / 1e9, &format!("{name}: 0 to 1"));
        let all: Vec<usize> = (0..gpus).collect();
        let rings = topology.rings(&all).unwrap();
        let carried = rings.bandwidth.get() * rings.cycles.len() as f64;
        let ring = Placement::new(&all, &cluster).inside.bandwidth;
        close(ring.get() / 1e9, carried / 1e9, &format!("{name}: ring"));
        compared += 1;
    }
    assert!(compared > 30, "{compared} nodes");
}

/// Pods of two nodes whose uplinks carry half of their NICs, once as a taper and once cable by cable.
#[test]
fn cables_and_tapers_of_one_fabric_are_equal() {
    let mut cables = String::from("links = [\n");
    let mut cable = |from: String, to: &str, gigabytes: usize| {
        cables += &format!(
            "  {{ between = [\"{from}\", \"{to}\"], bandwidth = \"{gigabytes} GB/s\", latency = \"0.5 us\" }},\n"
        );
    };
    // NICs of 10 GB/s; a pod of two nodes has four of them, and 20 GB/s to the core. The pod's switch adds no time.
    for pod in 0..4 {
        cable(format!("leaf{pod}"), "core", 20);
    }
    for (node, nic) in (0..8).flat_map(|node| [(node, 0), (node, 1)]) {
        cable(format!("node{node}.nic{nic}"), &format!("leaf{}", node / 2), 10);
    }
    cables += "]\n";
    let leaves = cables.replace("10 GB/s\", latency = \"0.5 us\"", "10 GB/s\", latency = 0");
    let (drawn, tapered) = (cluster_with(8, &leaves), cluster_with(8, "oversubscription = 2\npod_nodes = 2"));
    for ranks in
        [vec![0, 4], vec![0, 8], (0..32).collect(), (0..8).map(|node| 4 * node).collect(), (0..16).collect()]
    {
        for kind in [AllReduce, AllGather, AllToAll, SendReceive] {
            if kind == SendReceive && ranks.len() != 2 {
                continue;
            }
            let [a, b] = [&drawn, &tapered]
                .map(|cluster| collective_time(kind, Bytes::new(1e9), &ranks, cluster).get());
            close(a * 1e6, b * 1e6, &format!("{kind} over {ranks:?}"));
        }
    }
}

/// Time of an all-to-all of that many GB less that of an empty one: its transfer, without the start.
fn exchanged(ranks: &[usize], gigabytes: f64, cluster: &Cluster) -> f64 {
    let mut cluster = cluster.clone();
    cluster.node.interconnect.ramp = None;
    if let Some(nics) = &mut cluster.node.nics {
        (nics.exchange_ramp, nics.message_time) = (None, None);
    }
    let placement = Placement::new(ranks, &cluster);
    let time = |bytes: f64| {
        let call =
            Call { kind: AllToAll, bytes: Bytes::new(bytes), protocol: Protocol::Simple, channels: None };
        Direct.time(&call, &placement).unwrap().get()
    };
    time(gigabytes * 1e9) - time(0.0)
}

/// Pods of 384 racks of 8 GPUs each, 1:7 at their way out. Of a tensor over two pods of p/2 ranks each, half leaves a pod,
/// through a seventh of what its NICs carry: n/2 · 7 / β for each GPU with its NIC of β.
#[test]
fn an_all_to_all_over_tapered_pods_by_hand() {
    let cluster = Cluster::from_name("meta-llama3").unwrap();
    let taper = cluster.fabric.tapers().pop().unwrap();
    let (gpus, nics) = (cluster.node.gpus.value, cluster.node.nics.as_ref().unwrap());
    let of_gpu = nics.achieved().get() / gpus as f64 / 1e9;
    let pod = taper.nodes * gpus;
    let ranks: Vec<usize> = (0..2 * pod).collect();
    close(exchanged(&ranks, 100.0, &cluster), 50.0 * taper.oversubscription.value / of_gpu, "two pods");
    // Within a pod nothing is narrow: all but what stays in the node.
    let one = (0..pod).collect::<Vec<_>>();
    let leaving = (pod - gpus) as f64 / pod as f64;
    close(exchanged(&one, 100.0, &cluster), 100.0 * leaving / of_gpu, "one pod");
    assert_eq!((taper.oversubscription.value, taper.nodes), (7.0, 384));
}

/// A closed torus of 8 × 8: half of each rank's tensor crosses the middle, where a row has two cuts of one link each
/// way. A row's 8 ranks on one side so send 4 ranks · n/2 over 2 links: n e/8 = n through each, of 25 GB/s.
#[test]
fn an_all_to_all_on_a_torus_by_hand() {
    let cluster = cluster_with(16, "torus = { dims = [8, 8], node_dims = [2, 2] }");
    let ranks: Vec<usize> = (0..64).collect();
    close(exchanged(&ranks, 50.0, &cluster), 2.0, "50 GB at 25 GB/s");
}
