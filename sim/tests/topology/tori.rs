//! Routes along tori, and their bisection.

use super::{check_path, close, cluster_with, route, throughput};
use trainwright_sim::network::topology::{Topology, Vertex};
use trainwright_spec::cluster::{Cluster, Shape, Torus};

fn torus(cluster: &Cluster) -> &Torus {
    match &cluster.fabric.shape {
        Shape::Torus(torus) => torus,
        other => panic!("{other:?} is no torus"),
    }
}

/// Places of GPUs from the names of links alone: a slow twin that walks the graph.
#[test]
fn torus_routes_are_as_long_as_the_distance() {
    let check = |nodes: usize, fabric: &str| {
        let cluster = cluster_with(nodes, fabric);
        let (topology, torus) = (Topology::new(&cluster), torus(&cluster));
        let gpus = cluster.gpus();
        let alone = |gpu: usize| (0..gpus).map(|to| if to == gpu { 0 } else { usize::MAX }).collect();
        let mut distance: Vec<Vec<usize>> = (0..gpus).map(alone).collect();
        for link in topology.links() {
            let (Vertex::Gpu(from), Vertex::Gpu(to)) = (&link.from, &link.to) else { panic!("{link:?}") };
            distance[*from][*to] = 1;
        }
        for via in 0..gpus {
            for from in 0..gpus {
                for to in 0..gpus {
                    let over = distance[from][via].saturating_add(distance[via][to]);
                    distance[from][to] = distance[from][to].min(over);
                }
            }
        }
        let side = |dim: usize| if torus.wraps(dim) { torus.dims[dim] / 2 } else { torus.dims[dim] - 1 };
        let diameter: usize = (0..torus.dims.len()).map(side).sum();
        assert_eq!(distance.iter().flatten().max(), Some(&diameter), "{fabric}");
        for (from, to) in (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to))) {
            check_path(&topology, &cluster, from, to);
            assert_eq!(route(&topology, from, to).len(), distance[from][to], "{fabric}: {from} to {to}");
        }
    };
    check(16, "torus = { dims = [4, 4, 4], node_dims = [2, 2, 1] }");
    check(16, "torus = { dims = [8, 8] }");
    check(15, "torus = { dims = [5, 6, 2], node_dims = [1, 2, 2] }");
    check(6, "torus = { dims = [4, 6], wrap = [false, true], node_dims = [2, 2] }");
    check(4, "torus = { dims = [4, 4], wrap = [false, false] }");
    check(3, "torus = { dims = [12] }");
}

#[test]
fn bisection_of_tori() {
    // Links of 100 GB/s over four or six: 25 GB/s in two dims. A cut across 8 of 8 × 4 crosses 2 × 4 links each way.
    let topology = Topology::new(&cluster_with(8, "torus = { dims = [4, 8], node_dims = [4, 1] }"));
    let along = (0..32).map(|gpu| (gpu, (gpu + 16) % 32));
    close(throughput(&topology, along), 2.0 * 8.0 * 25.0, "both ways");
    // A node is joined to itself by the torus, not by switches.
    assert_eq!(topology.links().len(), 32 * 4);
    let cluster = Cluster::from_name("tpu-v4-pod").unwrap();
    let pod = Topology::new(&cluster);
    assert_eq!(pod.links().len(), 4096 * 6);
    // 16 × 16 chips on each side of a cut, which a ring crosses twice: 24 TB/s in the documentation of TPU v4, which
    // is 512 links of 45 GB/s.
    let published = pod.links()[0].bandwidth.get() / cluster.node.interconnect.efficiency.value;
    close(512.0 * published / 1e12, 23.04, "TB/s");
}
