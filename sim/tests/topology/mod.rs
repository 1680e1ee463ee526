//! Topologies: routes by hand, bandwidth of fabrics, rings of the links between pairs, and every entry of the
//! catalog.

mod carried;
mod catalog;
mod fabrics;
mod node;
mod rings;
mod tori;

use std::collections::BTreeMap;
use trainwright_sim::network::topology::{LinkId, LinkKind, Topology, Vertex};
use trainwright_spec::cluster::Cluster;

/// Nodes of 4 GPUs at 100 GB/s with 2 NICs of 10 GB/s, one for two GPUs.
fn cluster_with(nodes: usize, fabric: &str) -> Cluster {
    let text = format!(
        r#"
nodes = {nodes}
[node]
gpu = "a100-80gb-sxm"
gpus = 4
interconnect = {{ kind = "a", bandwidth = "200 GB/s", efficiency = 0.5, latency = "1 us" }}
nics = {{ kind = "b", count = 2, bandwidth = "12.5 GB/s", efficiency = 0.8, latency = "5 us" }}
[fabric]
hop_latency = "0.5 us"
{fabric}
"#
    );
    Cluster::from_toml(&text, "cluster.toml").unwrap_or_else(|error| panic!("{fabric}: {error}"))
}

fn route(topology: &Topology, from: usize, to: usize) -> Vec<LinkId> {
    let mut path = Vec::new();
    topology.route(from, to, &mut path);
    path
}

/// Links of each kind on the way.
fn kinds(topology: &Topology, from: usize, to: usize) -> [usize; 4] {
    let path = route(topology, from, to);
    [LinkKind::Interconnect, LinkKind::Host, LinkKind::Nic, LinkKind::Fabric]
        .map(|kind| path.iter().filter(|id| topology.link(**id).kind == kind).count())
}

/// Bandwidth in GB/s of all flows together when each gets the same rate: that of the link with the most flows.
fn throughput(topology: &Topology, flows: impl Iterator<Item = (usize, usize)>) -> f64 {
    let mut load: BTreeMap<LinkId, usize> = BTreeMap::new();
    let mut count = 0;
    for (from, to) in flows {
        route(topology, from, to).into_iter().for_each(|id| *load.entry(id).or_default() += 1);
        count += 1;
    }
    let rate = |(id, flows): (&LinkId, &usize)| topology.link(*id).bandwidth.get() / *flows as f64;
    load.iter().map(rate).fold(f64::INFINITY, f64::min) * count as f64 / 1e9
}

/// From every GPU of the first half to its counterpart in the second.
fn halves(gpus: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..gpus / 2).map(move |gpu| (gpu, gpu + gpus / 2))
}

fn close(value: f64, expected: f64, case: &str) {
    assert!((value - expected).abs() < 1e-9 * expected.max(1.0), "{case}: {value} for {expected}");
}

/// Each link starts where the one before ends; between a GPU and its NIC there is none.
fn check_path(topology: &Topology, cluster: &Cluster, from: usize, to: usize) {
    let gpus = cluster.node.gpus.value;
    let ports = cluster.node.nics.as_ref().map_or(0, |nics| nics.ports(gpus));
    let nic = |gpu: usize| Vertex::Nic { node: gpu / gpus, index: gpu % gpus * ports / gpus };
    let mut at = Vertex::Gpu(from);
    for id in route(topology, from, to) {
        let link = topology.link(id);
        let is_first_nic = matches!(at, Vertex::Gpu(gpu) if link.from == nic(gpu));
        assert!(
            link.from == at || is_first_nic,
            "{} > {} after {at}, from {from} to {to}",
            link.from,
            link.to
        );
        at = link.to.clone();
    }
    assert!(at == Vertex::Gpu(to) || at == nic(to), "{}: from {from} to {to} ends at {at}", cluster.name);
}
