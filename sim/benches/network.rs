//! Time to simulate collectives step by step: `cargo bench -p trainwright-sim --bench network`. All on one core.
//!
//! The topologies are built beforehand. Unfolded twins show what folding saves.

use divan::Bencher;
use std::sync::LazyLock;
use trainwright_sim::network::collective_time;
use trainwright_sim::network::steps::{Folding, SideBySide};
use trainwright_sim::network::topology::Topology;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::{Algorithm, CollectiveKind, Layout, Ring, Steps, TwoLevel};
use trainwright_spec::units::{Bytes, Seconds};

fn main() {
    divan::main();
}

/// DGX H100s in pods of 32 nodes, 256 pods below a core that is four times narrower.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let text = "nodes = 2048\nnode = \"dgx-h100\"\nfabric = { oversubscription = 4, pod_nodes = 32 }";
    Cluster::from_toml(text, "fat-tree.toml").unwrap()
});

static TOPOLOGY: LazyLock<Topology> = LazyLock::new(|| Topology::new(&CLUSTER));

/// 1,024 groups of 16 ranks, one on each of 16 nodes, as data-parallel groups lie where each node is a tensor-parallel one.
static RINGS: LazyLock<Vec<Vec<usize>>> = LazyLock::new(|| {
    let group = |index: usize| (0..16).map(|node| 8 * (16 * (index / 8) + node) + index % 8).collect();
    (0..1024).map(group).collect()
});

/// The 16,384 GPUs as one group.
static ALL: LazyLock<Vec<Vec<usize>>> = LazyLock::new(|| vec![(0..16_384).collect()]);

fn time(steps: &Steps, groups: &[Vec<usize>], folding: Folding) -> Seconds {
    let bytes = Bytes::new(1e9);
    let run = SideBySide { steps, bytes, groups: divan::black_box(groups), overhead: Seconds::ZERO };
    run.time(&TOPOLOGY, folding).expect("all GPUs are joined")
}

fn all_reduce(algorithm: &dyn Algorithm, layout: Layout) -> Steps {
    algorithm.steps(CollectiveKind::AllReduce, layout).expect("both do all-reduces")
}

fn bench(
    bencher: Bencher,
    algorithm: &dyn Algorithm,
    layout: Layout,
    groups: &[Vec<usize>],
    folding: Folding,
) {
    let steps = all_reduce(algorithm, layout);
    LazyLock::force(&TOPOLOGY);
    bencher.bench_local(|| time(&steps, groups, folding));
}

#[divan::bench]
fn rings_1024_side_by_side(bencher: Bencher) {
    bench(bencher, &Ring, Layout::flat(16).unwrap(), &RINGS, Folding::Folded);
}

#[divan::bench]
fn rings_1024_side_by_side_unfolded(bencher: Bencher) {
    bench(bencher, &Ring, Layout::flat(16).unwrap(), &RINGS, Folding::Unfolded);
}

#[divan::bench]
fn all_reduce_16384_by_ring(bencher: Bencher) {
    bench(bencher, &Ring, Layout::new(16_384, 8, 1).unwrap(), &ALL, Folding::Folded);
}

#[divan::bench]
fn all_reduce_16384_by_two_levels(bencher: Bencher) {
    bench(bencher, &TwoLevel, Layout::new(16_384, 8, 1).unwrap(), &ALL, Folding::Folded);
}

#[divan::bench]
fn all_reduce_16384_by_ring_unfolded(bencher: Bencher) {
    bench(bencher, &Ring, Layout::new(16_384, 8, 1).unwrap(), &ALL, Folding::Unfolded);
}

/// The time that a forecast takes: NCCL's choice, by formula.
#[divan::bench]
fn all_reduce_16384_as_nccl(bencher: Bencher) {
    bencher.bench_local(|| {
        collective_time(CollectiveKind::AllReduce, Bytes::new(1e9), divan::black_box(&ALL[0]), &CLUSTER)
    });
}
