//! Ways inside a node and out of it.

use super::{close, cluster_with, kinds, route};
use trainwright_sim::flow::{Flow, Network};
use trainwright_sim::network::topology::{LinkKind, Topology, Vertex};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::units::Picoseconds;

#[test]
fn paths_inside_a_node_by_hand() {
    let check = |name: &str, from: usize, to: usize, expected: [usize; 4]| {
        let topology = Topology::new(&Cluster::from_name(name).unwrap());
        assert_eq!(kinds(&topology, from, to), expected, "{name}: {from} to {to}");
        assert_eq!(kinds(&topology, to, from), expected, "{name}: {to} to {from}");
    };
    check("dgx-a100", 0, 0, [0, 0, 0, 0]);
    // To the switch and on.
    check("dgx-a100", 0, 7, [2, 0, 0, 0]);
    check("gb200-nvl72", 0, 71, [2, 0, 0, 0]);
    check("perlmutter-a100", 0, 3, [1, 0, 0, 0]);
    // The cube mesh joins 0 and 4, and 0 to 5 over 1 or 4.
    check("dgx-1v", 0, 4, [1, 0, 0, 0]);
    check("dgx-1v", 0, 5, [2, 0, 0, 0]);
    // A bridge; two lanes and the link between sockets.
    check("a100-pcie-4-bridged", 0, 1, [1, 0, 0, 0]);
    check("a100-pcie-4-bridged", 0, 2, [0, 3, 0, 0]);
    // One PCIe switch; two sockets: lane, switch, sockets, switch, lane.
    check("p100-pcie-8", 0, 3, [0, 2, 0, 0]);
    check("p100-pcie-8", 3, 4, [0, 5, 0, 0]);
    check("gtx-1080-ti-4", 1, 2, [0, 4, 0, 0]);
    check("rtx-4090-8", 0, 3, [0, 2, 0, 0]);
    check("rtx-4090-8", 0, 4, [0, 3, 0, 0]);
    check("tpu-v4-host", 0, 3, [2, 0, 0, 0]);
}

#[test]
fn pcie_beside_nvlink() {
    let topology = Topology::new(&Cluster::from_name("dgx-1v").unwrap());
    let check = |from: usize, to: usize, links: usize| {
        let mut path = Vec::new();
        assert!(topology.host_route(from, to, &mut path));
        assert!(path.iter().all(|id| topology.link(*id).kind == LinkKind::Host));
        assert_eq!(path.len(), links, "{from} to {to}");
    };
    check(0, 1, 2);
    check(0, 2, 4);
    check(0, 4, 5);
    let switched = Topology::new(&Cluster::from_name("dgx-a100").unwrap());
    assert!(!switched.host_route(0, 1, &mut Vec::new()), "its PCIe is not described");
}

#[test]
fn nics_serve_equal_runs_of_gpus() {
    let check = |name: &str, gpu: usize, nic: usize, gigabytes: f64| {
        let cluster = Cluster::from_name(name).unwrap();
        let topology = Topology::new(&cluster);
        let link = topology.link(route(&topology, gpu, topology.gpus() - 1)[0]).clone();
        assert_eq!(link.from, Vertex::Nic { node: 0, index: nic }, "{name}");
        let published = link.bandwidth.get() / cluster.node.nics.unwrap().efficiency.value;
        close(published / 1e9, gigabytes, name);
    };
    check("dgx-1v:2", 5, 2, 12.5);
    check("aws-p3dn:2", 7, 0, 12.5);
    // 32 NICs: four for each GPU.
    check("aws-p5:2", 5, 5, 50.0);
}

#[test]
fn flows_of_gpus_at_one_nic_share_it() {
    let topology = Topology::new(&cluster_with(2, "oversubscription = 1"));
    let mut network = Network::new(topology.shared());
    let mut start = |from: usize, to: usize| {
        let path = route(&topology, from, to).into_iter().map(|id| (id, 1.0)).collect();
        network.start(Picoseconds::ZERO, Flow { amount: 1e9, path, cap: None }).unwrap()
    };
    // GPUs 0 and 1 at NIC 0, GPU 2 alone at NIC 1.
    let flows = [start(0, 4), start(1, 5), start(2, 6)];
    assert_eq!(flows.map(|flow| network.rate(flow)), [5e9, 5e9, 10e9]);
}
