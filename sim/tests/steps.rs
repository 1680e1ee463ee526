//! Step lists timed on topologies: by hand, folded against unfolded, many groups at once.

use trainwright_sim::network::Placement;
use trainwright_sim::network::steps::{Folding, Groups, Lists, SideBySide, StepsError, channels};
use trainwright_sim::network::topology::Topology;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::{
    ALGORITHMS, Algorithm, BinomialTree, CollNet, CollectiveKind, Direct, HalvingDoubling, InSwitch, Layout,
    Pairwise, ParameterServer, Ring, TwoLevel,
};
use trainwright_spec::units::{Bytes, Seconds};

/// Nodes of 4 GPUs, 100 GB/s out of each GPU and 1 µs a step inside; 2 NICs of 20 GB/s and 10 µs.
fn cluster(nodes: usize, fabric: &str) -> Cluster {
    let text = format!(
        r#"
nodes = {nodes}
fabric = {fabric}
[node]
gpu = "a100-80gb-sxm"
gpus = 4
nics = {{ kind = "b", count = 2, bandwidth = "25 GB/s", efficiency = 0.8, latency = "10 us" }}
interconnect = {{ kind = "a", bandwidth = "200 GB/s", efficiency = 0.5, latency = "1 us" }}
"#
    );
    Cluster::from_toml(&text, "nodes.toml").unwrap()
}

fn non_blocking(nodes: usize) -> Topology {
    Topology::new(&cluster(nodes, "{ oversubscription = 1 }"))
}

/// Microseconds of a collective of some megabytes by groups side by side.
fn time(
    (algorithm, kind): (&dyn Algorithm, CollectiveKind),
    layout: Layout,
    megabytes: f64,
    groups: &[Vec<usize>],
    topology: &Topology,
) -> Result<f64, StepsError> {
    let steps = algorithm.steps(kind, layout).unwrap();
    let bytes = Bytes::new(megabytes * 1e6);
    let run = SideBySide { steps: &steps, bytes, groups, overhead: Seconds::ZERO };
    let [folded, unfolded] = [Folding::Folded, Folding::Unfolded].map(|folding| run.time(topology, folding));
    let (folded, unfolded) = (folded?.get(), unfolded?.get());
    assert!((folded - unfolded).abs() <= 1e-9 * unfolded, "folded {folded}, unfolded {unfolded}");
    Ok(folded * 1e6)
}

fn check(
    what: (&dyn Algorithm, CollectiveKind),
    layout: Layout,
    groups: &[Vec<usize>],
    topology: &Topology,
    expected: f64,
) {
    let megabytes = 40.0;
    let time = time(what, layout, megabytes, groups, topology).unwrap();
    let case = format!("{} {} of {} ranks", what.0.name(), what.1.name(), layout.ranks());
    // Flows end on whole picoseconds.
    assert!((time - expected).abs() < 1e-6 * expected, "{case}: {time} µs for {expected} µs");
}

#[test]
fn inside_a_node_by_hand() {
    use CollectiveKind::{AllGather, AllReduce, AllToAll, Broadcast, SendReceive};
    let topology = non_blocking(1);
    let flat = Layout::flat(4).unwrap();
    let four = [vec![0, 1, 2, 3]];
    // 40 MB take 400 µs out of a GPU; every step adds 1 µs.
    // Ring: 3 steps of a quarter, twice in an all-reduce.
    check((&Ring, AllGather), flat, &four, &topology, 3.0 * (1.0 + 100.0));
    check((&Ring, AllReduce), flat, &four, &topology, 6.0 * (1.0 + 100.0));
    // Halving-doubling: a half, a quarter, and back.
    check((&HalvingDoubling, AllReduce), flat, &four, &topology, 4.0 + 2.0 * (200.0 + 100.0));
    // Three send all to rank 0 through its one way in, and get all from its one way out.
    check((&ParameterServer, AllReduce), flat, &four, &topology, 2.0 * (1.0 + 3.0 * 400.0));
    // Each of three quarters to another peer, at once or one after the other: 3/4 of 400 µs either way.
    check((&Direct, AllToAll), flat, &four, &topology, 1.0 + 300.0);
    check((&Pairwise, AllToAll), flat, &four, &topology, 3.0 * (1.0 + 100.0));
    check((&Direct, SendReceive), flat, &four, &topology, 1.0 + 400.0);
    // Two rounds, the second from two ranks at once.
    check((&BinomialTree, Broadcast), flat, &four, &topology, 2.0 * (1.0 + 400.0));
    // To the switch, a quarter of the sum from it, that quarter back to it, and the sum to all; what comes from a
    // switch adds no latency.
    let layout = Layout::new(4, 4, 1).unwrap();
    check((&InSwitch, AllReduce), layout, &four, &topology, 401.0 + 100.0 + 101.0 + 400.0);
}

#[test]
fn between_nodes_by_hand() {
    use CollectiveKind::AllReduce;
    let topology = non_blocking(2);
    let layout = Layout::new(8, 4, 1).unwrap();
    let ranks: Vec<usize> = (0..8).collect();
    // 40 MB take 2000 µs through one NIC of 20 GB/s. One ring leaves each node through one NIC: 14 steps of an eighth.
    let one = [ranks.clone()];
    check((&Ring, AllReduce), layout, &one, &topology, 14.0 * (10.0 + 250.0));
    // Four channels, each with another rank at the seam, together use both NICs: two of them on each.
    let four = channels(&ranks, 4);
    assert_eq!(four[1], [1, 2, 3, 0, 5, 6, 7, 4]);
    check((&Ring, AllReduce), layout, &four, &topology, 14.0 * (10.0 + 2.0 * 250.0));
    // Two levels: three steps of a quarter in the node (100 µs + 1); two steps between nodes, where four rails pass an
    // eighth each over two NICs; three steps in the node.
    let expected = 2.0 * 3.0 * 101.0 + 2.0 * (10.0 + 2.0 * 250.0);
    check((&TwoLevel, AllReduce), layout, &one, &topology, expected);
    // In the fabric's switches: in the node three messages of a quarter at once from each rank (300 µs + 1); four
    // ranks send a quarter through two NICs (1000 µs + 10), and get it back (no latency); then as at first.
    check((&CollNet, AllReduce), layout, &one, &topology, 301.0 + 1010.0 + 1000.0 + 301.0);
}

/// All flows out of a pod share its narrow uplinks.
#[test]
fn groups_side_by_side_share_uplinks() {
    // Pods of two nodes; 2 × 40 GB/s of NICs on an uplink of 20 GB/s.
    let topology = Topology::new(&cluster(4, "{ oversubscription = 4, pod_nodes = 2 }"));
    let layout = Layout::flat(2).unwrap();
    let swap = (&Direct as &dyn Algorithm, CollectiveKind::SendReceive);
    // Inside a pod: 2000 µs over a NIC; out of it the same for one pair, twice that for two.
    check(swap, layout, &[vec![0, 4]], &topology, 2010.0);
    check(swap, layout, &[vec![0, 8]], &topology, 2010.0);
    check(swap, layout, &[vec![0, 8], vec![2, 10]], &topology, 4010.0);
    check(swap, layout, &[vec![0, 8], vec![4, 12]], &topology, 4010.0);
    // Pairs in the pods do not care.
    check(swap, layout, &[vec![0, 4], vec![8, 12]], &topology, 2010.0);
}

#[test]
fn every_algorithm_folds_to_the_same_time() {
    let fabrics = ["{ oversubscription = 3, pod_nodes = 2 }", "{ rail_optimised = { pod_nodes = 2 } }"];
    let mut timed = 0;
    for topology in fabrics.map(|fabric| Topology::new(&cluster(8, fabric))) {
        for (algorithm, kind) in
            ALGORITHMS.iter().flat_map(|algorithm| CollectiveKind::ALL.map(|kind| (*algorithm, kind)))
        {
            // Whole nodes; then two ranks of every node twice, side by side.
            let one_group = (Layout::new(32, 4, 2).unwrap(), channels(&(0..32).collect::<Vec<_>>(), 4));
            let pairs = |first: usize| {
                (0..8usize).flat_map(|node| [4 * node + first, 4 * node + first + 1]).collect()
            };
            let halves = (Layout::new(16, 2, 3).unwrap(), vec![pairs(0), pairs(2)]);
            for (layout, groups) in [one_group, halves] {
                if algorithm.steps(kind, layout).is_some() {
                    // Asserts that both are equal.
                    assert!(time((algorithm, kind), layout, 8.0, &groups, &topology).unwrap() > 0.0);
                    timed += 1;
                }
            }
        }
    }
    assert!(timed > 60, "only {timed}");
}

/// Without switches that add there is no time.
#[test]
fn an_algorithm_needs_its_switches() {
    let cluster = Cluster::from_name("perlmutter-a100:2").unwrap();
    let topology = Topology::new(&cluster);
    let layout = Layout::new(8, 4, 1).unwrap();
    let ranks = [(0..8).collect::<Vec<_>>()];
    let error = time((&InSwitch, CollectiveKind::AllReduce), layout, 1.0, &ranks, &topology).unwrap_err();
    assert_eq!(error.to_string(), "GPU 0 is not joined to switches of its node, which the algorithm needs");
}

/// The time of `algorithm` over all GPUs of `cluster`.
fn lists(algorithm: &dyn Algorithm, kind: CollectiveKind, cluster: &Cluster) -> Result<Lists, StepsError> {
    let ranks = [(0..cluster.gpus()).collect()];
    let groups = Groups { algorithm, kind, ranks: &ranks, per_node: cluster.node.gpus.value };
    Ok(groups.lists(cluster, &Topology::new(cluster))?.expect("the algorithm does this"))
}

#[test]
fn lists_are_laid_out_as_they_are_fastest() {
    use CollectiveKind::AllReduce;
    let cluster = cluster(2, "{ oversubscription = 1 }");
    let check = |algorithm: &dyn Algorithm, kind, megabytes: f64, pieces: usize, expected: f64| {
        let timed = lists(algorithm, kind, &cluster).unwrap().time(Bytes::new(megabytes * 1e6));
        let start = Placement::new(&[0, 1], &cluster).start;
        let microseconds = (timed.time - start).get() * 1e6;
        assert!((microseconds - expected).abs() < 1e-6 * expected, "{}: {microseconds} µs", algorithm.name());
        assert_eq!(timed.pieces, pieces, "{}", algorithm.name());
    };
    // 40 MB take 2000 µs through one NIC, of which a node has two. Four rings of 10 MB cross each seam twice on each
    // NIC: 14 steps of an eighth, 2 · 62.5 µs.
    check(&Ring, AllReduce, 40.0, 1, 14.0 * (10.0 + 125.0));
    // Two levels use all NICs with one list: a quarter in the node 100 µs, an eighth over half of a NIC 500 µs.
    check(&TwoLevel, AllReduce, 40.0, 1, 2.0 * 3.0 * 101.0 + 2.0 * (10.0 + 500.0));
    // Chains of 7 hops in m pieces take 6 + m steps: whole where only latency counts, in many pieces where it does not.
    check_pieces(&cluster, 1.0, 1);
    check_pieces(&cluster, 4e9, 64);
}

fn check_pieces(cluster: &Cluster, bytes: f64, expected: usize) {
    let timed = lists(&Ring, CollectiveKind::Broadcast, cluster).unwrap().time(Bytes::new(bytes));
    assert_eq!(timed.pieces, expected, "{bytes} bytes");
}

/// One run gives the time of every size: it is what a run of that size has.
#[test]
fn costs_hold_for_every_size() {
    let topology = Topology::new(&cluster(4, "{ oversubscription = 3, pod_nodes = 2 }"));
    let groups = [(0..16).collect::<Vec<_>>()];
    for algorithm in [&Ring as &dyn Algorithm, &HalvingDoubling, &TwoLevel, &ParameterServer, &CollNet] {
        let steps = algorithm.steps(CollectiveKind::AllReduce, Layout::new(16, 4, 2).unwrap()).unwrap();
        let run = |bytes| SideBySide { steps: &steps, bytes, groups: &groups, overhead: Seconds::new(1e-6) };
        let costs = run(Bytes::GIB).costs(&topology, Folding::Folded).unwrap();
        for bytes in [8.0, 1e5, 1e8, 1e11].map(Bytes::new) {
            let (scaled, run_anew) =
                (costs.time(bytes), run(bytes).time(&topology, Folding::Folded).unwrap());
            // A run rounds every flow to a picosecond.
            let off = (scaled.get() - run_anew.get()).abs();
            assert!(
                off <= 1e-6 * run_anew.get(),
                "{} of {bytes:?}: {scaled} for {run_anew}",
                algorithm.name()
            );
        }
    }
}

#[test]
fn lists_need_switches_that_add_and_a_group_of_some_size() {
    let refuse = |algorithm: &dyn Algorithm, kind, cluster: &str, expected: &str| {
        let error = lists(algorithm, kind, &Cluster::from_name(cluster).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    refuse(
        &InSwitch,
        CollectiveKind::AllReduce,
        "dgx-a100:2",
        "nvlink3-nvswitch has no switches that add, which the algorithm needs",
    );
    let many =
        "it would have more than 2000000 transfers to simulate: take a smaller group, or another algorithm";
    refuse(&Direct, CollectiveKind::AllToAll, "dgx-h100:512", many);
    refuse(&Pairwise, CollectiveKind::AllToAll, "dgx-h100:512", many);
    let on_h100 = lists(&InSwitch, CollectiveKind::AllReduce, &Cluster::from_name("dgx-h100").unwrap());
    assert!(!on_h100.unwrap().needs_fabric_to_add());
}
