//! Collectives and messages: by hand, NCCL's choice in known cases, and properties.

use trainwright_sim::network::{
    ALGORITHMS, Algorithm, Call, Direct, Forced, Nvls, NvlsTree, Placement, Protocol, Ring, Tree,
    collective_time, message_time,
};
use trainwright_spec::cluster::{Cluster, Generation, Rings, Wiring};
use trainwright_spec::collective::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Reduce, ReduceScatter, SendReceive,
};
use trainwright_spec::nccl::Nccl;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// Four nodes of 4 GPUs, in pods of two: 100 GB/s for each GPU inside, 2 × 20 = 40 GB/s for each node outside.
const FOUR_NODES: &str = r#"
nodes = 4
nccl = "2.30"
[fabric]
oversubscription = 4
pod_nodes = 2
[node]
gpu = "a100-80gb-sxm"
gpus = 4
nics = { kind = "b", count = 2, bandwidth = "25 GB/s", efficiency = 0.8, latency = "10 us" }
[node.interconnect]
kind = "a"
bandwidth = "200 GB/s"
efficiency = 0.5
latency = "1 us"
in_switch = { efficiency = 0.25, latency = "20 us" }
"#;

/// The same with a memory of 1 TB/s, so that copying a piece of 1 MB takes 2 µs, and GPUs that start at once.
fn four_nodes() -> Cluster {
    let mut cluster = Cluster::from_toml(FOUR_NODES, "four-nodes.toml").unwrap();
    cluster.node.gpu.memory_bandwidth.value = BytesPerSecond::new(2e12);
    cluster.node.gpu.achieved.memory.value = 0.5;
    cluster.node.gpu.achieved.collective_start = None;
    cluster
}

fn close(time: Seconds, microseconds: f64, case: &str) {
    assert!(
        (time.get() * 1e6 - microseconds).abs() < 1e-6 * microseconds.max(1.0),
        "{case}: {time} for {microseconds} µs"
    );
}

fn call(kind: CollectiveKind, megabytes: f64, protocol: Protocol) -> Call {
    Call { kind, bytes: Bytes::new(megabytes * 1e6), protocol, channels: None }
}

fn sourced<T>(value: T) -> Sourced<T> {
    Sourced { value, source: "test".into() }
}

/// Microseconds before the first step: NCCL's base latency of rings and trees with Simple.
const START: f64 = 8.4;

/// Microseconds of a step between nodes with Simple on GPUs that flush: NCCL's 14 and twice the 10 of the NICs.
const CROSSING: f64 = 34.0;

#[test]
fn a_ring_by_hand() {
    let cluster = four_nodes();
    let check = |kind: CollectiveKind, megabytes: f64, ranks: &[usize], expected: f64| {
        let placement = Placement::new(ranks, &cluster);
        let time = Ring.time(&call(kind, megabytes, Protocol::Simple), &placement).unwrap();
        close(time, START + expected, &format!("{kind:?} {ranks:?}"));
    };
    // One node, 4 ranks: (p − 1)/p · 40 MB / 100 GB/s = 300 µs and 3 steps of 1 µs; an all-reduce does it twice.
    // Reading and writing a piece of 10 MB takes 20 µs.
    check(AllGather, 40.0, &[0, 1, 2, 3], 303.0 + 20.0);
    check(ReduceScatter, 40.0, &[4, 5, 6, 7], 303.0 + 20.0);
    check(AllReduce, 40.0, &[0, 1, 2, 3], 606.0 + 20.0);
    // 2 ranks: 2 · 1/2 · 40 MB / 100 GB/s = 400 µs and 2 steps; pieces of 20 MB.
    check(AllReduce, 40.0, &[2, 3], 402.0 + 40.0);
    // A stream from one end to the other: 40 MB / 100 GB/s and 3 steps.
    check(Broadcast, 40.0, &[0, 1, 2, 3], 403.0);
    check(Reduce, 40.0, &[0, 1, 2, 3], 403.0);
    // Empty messages cost their steps only.
    check(AllReduce, 0.0, &[0, 1, 2, 3], 6.0);
    check(Barrier, 0.0, &[0, 1, 2, 3], 6.0);
    // Two whole nodes: 40 GB/s; 7/8 · 40 MB / 40 GB/s = 875 µs; of 7 steps 2 cross, 5 do not (1 µs).
    check(AllGather, 40.0, &[0, 1, 2, 3, 4, 5, 6, 7], 880.0 + 2.0 * CROSSING + 10.0);
    check(AllReduce, 40.0, &[0, 1, 2, 3, 4, 5, 6, 7], 1760.0 + 4.0 * CROSSING + 10.0);
    // One rank on each of two nodes, a quarter of the NICs: 1/2 · 40 MB / 10 GB/s = 2000 µs; the one step crosses.
    check(AllGather, 40.0, &[1, 5], 2000.0 + CROSSING + 40.0);
    // Two on one node and one on the other: the smaller share, 10 GB/s, 2/3 · 30 MB = 2000 µs; both steps cross.
    check(AllGather, 30.0, &[0, 1, 4], 2000.0 + 2.0 * CROSSING + 20.0);
    // Over both pods, two nodes in each: uplinks give 2/4 of 10 GB/s; 3/4 · 40 MB / 5 GB/s = 6000 µs, 3 crossings.
    check(AllGather, 40.0, &[0, 4, 8, 12], 6000.0 + 3.0 * CROSSING + 20.0);
    // Over both pods, one node in each: 1/4 of 10 GB/s; 1/2 · 40 MB / 2.5 GB/s = 8000 µs.
    check(AllGather, 40.0, &[0, 8], 8000.0 + CROSSING + 40.0);
}

/// An all-gather of 1 MB over 4 ranks in a node: 0.75 MB through each link, a copy of 0.5 µs, 3 steps.
#[test]
fn protocols_by_hand() {
    let placement = Placement::new(&[0, 1, 2, 3], &four_nodes());
    let check = |protocol: Protocol, channels: Option<usize>, expected: f64| {
        let call = Call { channels, ..call(AllGather, 1.0, protocol) };
        let time = Ring.time(&call, &placement).unwrap();
        close(time, expected, &format!("{protocol} {channels:?}"));
    };
    // NVLink steps of 0.6, 1.9 and 3.4 µs, here of 1 µs with Simple.
    check(Protocol::Simple, None, 8.4 + 3.0 + 7.5 + 0.5);
    // Half of 100 GB/s: 15 µs.
    check(Protocol::LowLatency, None, 6.6 + 3.0 * 0.6 / 3.4 + 15.0 + 0.5);
    // 83 GB/s.
    check(Protocol::LowLatency128, None, 14.0 + 3.0 * 1.9 / 3.4 + 750.0 / 83.0 + 0.5);
    // Two channels of an A100 carry 24 GB/s each with Simple, 20 GB/s with LL128.
    check(Protocol::Simple, Some(2), 8.4 + 3.0 + 750.0 / 48.0 + 0.5);
    check(Protocol::LowLatency128, Some(2), 14.0 + 3.0 * 1.9 / 3.4 + 750.0 / 40.0 + 0.5);
    // Eight are more than the link carries.
    check(Protocol::Simple, Some(8), 8.4 + 3.0 + 7.5 + 0.5);
}

/// V = 300 µs: with a ramp of 3 µs 2 √900 = 60 µs more; the last 10 MB out of host memory at 10 GB/s are 1000 µs.
#[test]
fn ramps_and_host_memory_by_hand() {
    let mut cluster = four_nodes();
    cluster.node.interconnect.ramp = Some(sourced(Seconds::new(3e-6)));
    let check = |cluster: &Cluster, expected: f64| {
        let placement = Placement::new(&[0, 1, 2, 3], cluster);
        let time = Ring.time(&call(AllGather, 40.0, Protocol::Simple), &placement).unwrap();
        close(time, START + expected, "4 ranks");
    };
    check(&cluster, 303.0 + 60.0 + 20.0);
    cluster.node.interconnect.staging = Some(sourced(BytesPerSecond::new(10e9)));
    check(&cluster, 303.0 + 60.0 + 1000.0);
}

/// Each rank sends 2 (p − 1)/p · n bytes in a ring all-reduce, half of that in an all-gather or a reduce-scatter.
#[test]
fn the_volume_is_that_of_the_textbook() {
    let mut cluster = Cluster::from_name("gb200-nvl72").unwrap();
    cluster.node.gpu.memory_bandwidth.value = BytesPerSecond::new(1e30);
    cluster.node.interconnect.ramp = None;
    let bandwidth = Placement::new(&[0, 1], &cluster).ring_bandwidth();
    let volume = |algorithm: &dyn Algorithm, kind: CollectiveKind, placement: &Placement| {
        let time =
            |megabytes: f64| algorithm.time(&call(kind, megabytes, Protocol::Simple), placement).unwrap();
        (time(1000.0) - time(0.0)).get() * bandwidth.get() / 1e9
    };
    for (p, sent) in [(2, 0.5), (4, 0.75), (8, 0.875), (16, 0.9375), (64, 0.984375)] {
        let placement = Placement::new(&(0..p).collect::<Vec<_>>(), &cluster);
        for (kind, expected) in [
            (AllReduce, 2.0 * sent),
            (AllGather, sent),
            (ReduceScatter, sent),
            (Broadcast, 1.0),
            (Reduce, 1.0),
        ] {
            let volume = volume(&Ring, kind, &placement);
            assert!((volume - expected).abs() < 1e-9, "{kind:?} of {p}: {volume}");
        }
        for (kind, expected) in [(AllToAll, sent), (SendReceive, 1.0)] {
            let volume = volume(&Direct, kind, &placement);
            assert!((volume - expected).abs() < 1e-9, "{kind:?} of {p}: {volume}");
        }
    }
}

/// With equal links a switch-reduced all-reduce moves n where a ring moves nearly 2 n: half as long.
#[test]
fn reduction_in_the_switches_halves_the_time() {
    let mut cluster = four_nodes();
    cluster.node.interconnect.in_switch.as_mut().unwrap().efficiency.value = 0.5;
    let placement = Placement::new(&[0, 1, 2, 3], &cluster);
    let time = |algorithm: &dyn Algorithm| {
        algorithm.time(&call(AllReduce, 1e6, Protocol::Simple), &placement).unwrap()
    };
    // 1 TB: 10 s against 2 · 3/4 · 10 s, and a copy of 0.5 s.
    assert!((time(&Nvls).get() - 10.0).abs() < 0.1);
    assert!((time(&Ring).get() - 15.5).abs() < 0.1);
}

/// The latency of a tree grows by two crossings each time the nodes double, that of a ring with the nodes.
#[test]
fn the_latency_of_a_tree_is_logarithmic() {
    let mut cluster = four_nodes();
    cluster.nodes = 64;
    let latency = |algorithm: &dyn Algorithm, nodes: usize| {
        let ranks: Vec<usize> = (0..nodes).map(|node| 4 * node).collect();
        let placement = Placement::new(&ranks, &cluster);
        algorithm.time(&call(AllReduce, 0.0, Protocol::Simple), &placement).unwrap()
    };
    for (nodes, levels) in [(2, 1.0), (4, 2.0), (5, 3.0), (8, 3.0), (16, 4.0), (64, 6.0)] {
        close(latency(&Tree, nodes), START + 2.0 * levels * CROSSING, &format!("tree over {nodes}"));
        let steps = 2.0 * (nodes as f64 - 1.0);
        close(latency(&Ring, nodes), START + steps * CROSSING, &format!("ring over {nodes}"));
    }
}

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
fn trees_by_hand() {
    let cluster = four_nodes();
    let check = |algorithm: &dyn Algorithm, megabytes: f64, ranks: &[usize], expected: Option<f64>| {
        let placement = Placement::new(ranks, &cluster);
        let time = algorithm.time(&call(AllReduce, megabytes, Protocol::Simple), &placement);
        let case = format!("{} {megabytes} MB {ranks:?}", algorithm.name());
        assert_eq!(time.is_some(), expected.is_some(), "{case}");
        if let (Some(time), Some(expected)) = (time, expected) {
            close(time, expected, &case);
        }
    };
    let two_nodes: Vec<usize> = (0..8).collect();
    // Two nodes: B = 2 (3 · 4/3.4 + 14), W = 2 · 20; V = 2 · 1.3 MB / 40 GB/s = 65 µs; W + B + V + 2 √(B V).
    let busy = 2.0 * (3.0 * 4.0 / 3.4 + 14.0);
    check(&Tree, 1.3, &two_nodes, Some(START + 40.0 + busy + 65.0 + 2.0 * (busy * 65.0).sqrt()));
    check(&Tree, 0.0, &two_nodes, Some(START + 40.0 + busy));
    // One rank on each of two nodes: B = 28, W = 40, V = 2 · 1 MB / 10 GB/s = 200.
    check(&Tree, 1.0, &[0, 4], Some(START + 268.0 + 2.0 * 5600.0f64.sqrt()));
    // In the switches: 50 MB / 50 GB/s = 1000 µs; (√20 + √1000)².
    check(&Nvls, 50.0, &[0, 1, 2, 3], Some(1020.0 + 2.0 * 20_000.0f64.sqrt()));
    check(&Nvls, 50.0, &two_nodes, None);
    check(&Nvls, 50.0, &[0, 1], None);
    // Two nodes exchange sums once: B = 20 + 2 · 14 = 48, W = 2 · 20 = 40; V = 4 MB / 40 GB/s = 100.
    check(&NvlsTree, 4.0, &two_nodes, Some(188.0 + 2.0 * 4800.0f64.sqrt()));
    // Four nodes, two in each pod: 2/4 of 40 GB/s, twice: V = 2 · 4 MB / 20 GB/s = 400; B = 20 + 4 · 14 = 76, W = 80.
    check(&NvlsTree, 4.0, &(0..16).collect::<Vec<_>>(), Some(556.0 + 2.0 * 30_400.0f64.sqrt()));
    check(&NvlsTree, 1.0, &[0, 4], None);
    check(&NvlsTree, 1.0, &[0, 1, 2, 3], None);
}

/// From Hopper on the receiver does not flush, so that the NICs' 10 µs count once with Simple too: 14 + 10 µs a step.
#[test]
fn only_old_gpus_flush() {
    let mut cluster = four_nodes();
    let two_nodes: Vec<usize> = (0..8).collect();
    for (generation, crossing) in [
        (Generation::Volta, 34.0),
        (Generation::Ampere, 34.0),
        (Generation::Hopper, 24.0),
        (Generation::Blackwell, 24.0),
    ] {
        cluster.node.gpu.generation = generation;
        let placement = Placement::new(&two_nodes, &cluster);
        let time = |algorithm: &dyn Algorithm, kind, protocol| {
            algorithm.time(&call(kind, 0.0, protocol), &placement).unwrap()
        };
        let case = format!("{generation:?}");
        // Two of the 7 steps of an all-gather cross; up and down a tree cross one each.
        close(time(&Ring, AllGather, Protocol::Simple), START + 5.0 + 2.0 * crossing, &case);
        close(time(&NvlsTree, AllReduce, Protocol::Simple), 20.0 + 2.0 * crossing, &case);
        let chain = 3.0 * 4.0 / 3.4;
        close(time(&Tree, AllReduce, Protocol::Simple), START + 2.0 * (chain + crossing), &case);
        // NCCL 2.30's 6.8 and 5 µs; LL has no flush to lose.
        let chain = 3.0 * 0.6 / 3.4;
        close(time(&Tree, AllReduce, Protocol::LowLatency), 6.8 + 2.0 * (chain + 15.0), &case);
    }
}

/// Microseconds before the first byte of a message: `start` of NCCL's direct messages.
const MESSAGE: f64 = 3.7;

#[test]
fn a_message_by_hand() {
    let cluster = four_nodes();
    let check = |from: usize, to: usize, expected: f64| {
        let time = message_time(Bytes::new(10e6), from, to, &cluster);
        close(time, MESSAGE + expected, &format!("{from} to {to}"));
    };
    check(0, 3, 100.0); // 10 MB / 100 GB/s
    check(0, 4, 1020.0); // a quarter of 40 GB/s: 1000 µs, and twice the 10 µs of the NICs
    check(7, 0, 1020.0);
    check(0, 8, 4020.0); // out of the pod: a quarter of that
}

#[test]
fn an_all_to_all_by_hand() {
    let mut cluster = four_nodes();
    let time = |cluster: &Cluster, megabytes: f64, ranks: std::ops::Range<usize>| {
        let placement = Placement::new(&ranks.collect::<Vec<_>>(), cluster);
        Direct.time(&call(AllToAll, megabytes, Protocol::Simple), &placement).unwrap()
    };
    // One node: three of four parts of 40 MB at 100 GB/s.
    close(time(&cluster, 40.0, 0..4), MESSAGE + 300.0, "one node");
    // Two nodes: half of 40 MB leaves the node at 10 GB/s for each GPU, 2000 µs.
    close(time(&cluster, 40.0, 0..8), MESSAGE + 20.0 + 2000.0, "two nodes");
    close(time(&cluster, 0.0, 0..8), MESSAGE + 20.0, "empty messages");
    // NICs with a ramp of 5 µs: 2 √(5 · 2000) = 200 µs more.
    let nics = cluster.node.nics.as_mut().unwrap();
    nics.exchange_ramp = Some(sourced(Seconds::new(5e-6)));
    nics.message_time = Some(sourced(Seconds::new(6e-6)));
    close(time(&cluster, 40.0, 0..8), MESSAGE + 20.0 + 2000.0 + 200.0, "two nodes with a ramp");
    // The host sends 4 empty messages at 6 µs, longer than the 20 µs of the network.
    close(time(&cluster, 0.0, 0..8), MESSAGE + 4.0 * 6.0, "empty messages at 6 µs");
}

/// Over 40 ranks NCCL has one channel to a peer; only NICs that say what it carries are held to that.
#[test]
fn only_nics_with_a_cap_hold_a_channel_to_it() {
    let time = |cluster: &str, bytes: f64| {
        let cluster = Cluster::from_name(cluster).unwrap();
        let placement = Placement::new(&(0..64).collect::<Vec<_>>(), &cluster);
        let share = placement.between.unwrap().bandwidth / 8.0;
        (Direct.time(&call(SendReceive, bytes, Protocol::Simple), &placement).unwrap(), share)
    };
    let (large, share) = time("dgx-h100:8", 1000.0);
    close(large - time("dgx-h100:8", 0.0).0, 1e15 / share.get(), "1 GB over InfiniBand");
    assert!(share > BytesPerSecond::new(48e9));
}

/// NCCL opens two channels to each peer for up to 32 ranks and one beyond; with EFA each carries 21.5 of the 47 GB/s
/// that a GPU has.
#[test]
fn channels_to_a_peer_halve_with_the_ranks() {
    let cluster = Cluster::from_name("aws-p5:16").unwrap();
    for (ranks, channels) in [(16, 2), (32, 2), (40, 1), (128, 1)] {
        let placement = Placement::new(&(0..ranks).collect::<Vec<_>>(), &cluster);
        let choice = placement.choose(SendReceive, Bytes::new(1e9), &Forced::default()).unwrap();
        assert_eq!((choice.algorithm, choice.channels), ("direct", channels), "{ranks} ranks");
        let without = Direct.time(&call(SendReceive, 0.0, Protocol::Simple), &placement).unwrap();
        close(choice.time - without, 1e9 / (channels as f64 * 21.5e3), "1 GB");
    }
}

#[test]
fn every_kind_has_its_algorithms() {
    let placement = Placement::new(&(0..16).collect::<Vec<_>>(), &four_nodes());
    let check = |kind: CollectiveKind, expected: &[&str]| {
        let able = ALGORITHMS.iter().filter(|algorithm| {
            let call = call(kind, 1.0, Protocol::Simple);
            let able = algorithm.time(&call, &placement).is_some();
            assert_eq!(able, algorithm.expected(&call, &placement).is_some(), "{kind} {}", algorithm.name());
            able
        });
        assert_eq!(able.map(|algorithm| algorithm.name()).collect::<Vec<_>>(), expected, "{kind}");
    };
    check(AllReduce, &["ring", "tree", "nvls-tree"]);
    check(Barrier, &["ring", "tree"]);
    for kind in [AllGather, ReduceScatter, Broadcast, Reduce] {
        check(kind, &["ring"]);
    }
    for kind in [AllToAll, SendReceive] {
        check(kind, &["direct"]);
    }
}

/// What NCCL is known to choose, on whole nodes.
#[test]
fn the_choice_is_the_known_one() {
    let check = |cluster: &str, ranks: usize, kind: CollectiveKind, bytes: f64, expected: (&str, &str)| {
        let cluster = Cluster::from_name(cluster).unwrap();
        let placement = Placement::new(&(0..ranks).collect::<Vec<_>>(), &cluster);
        let choice = placement.choose(kind, Bytes::new(bytes), &Forced::default()).unwrap();
        let case = format!("{} {ranks} {kind} {bytes}", cluster.name);
        assert_eq!((choice.algorithm, choice.protocol.name()), expected, "{case}");
        let ranks: Vec<usize> = (0..ranks).collect();
        assert_eq!(choice.time, collective_time(kind, Bytes::new(bytes), &ranks, &cluster), "{case}");
    };
    // Tiny: the fewest flags to wait for. On many nodes the tree, whose depth is logarithmic.
    check("dgx-a100", 2, AllReduce, 8.0, ("ring", "LL"));
    check("dgx-h100", 8, AllReduce, 8.0, ("ring", "LL"));
    check("aws-p5:16", 128, AllReduce, 1024.0, ("tree", "LL"));
    check("dgx-a100:16", 128, AllReduce, 1024.0, ("tree", "LL"));
    // Medium: LL128, but not on PCIe nor over NICs that lose the order.
    check("dgx-a100", 8, AllReduce, 4e6, ("ring", "LL128"));
    check("dgx-a100:4", 32, AllReduce, 2e6, ("tree", "LL128"));
    check("aws-p5:16", 128, AllReduce, 2e6, ("tree", "LL128"));
    // Large: all of the bandwidth.
    check("dgx-a100", 8, AllReduce, 4e9, ("ring", "Simple"));
    check("dgx-a100:4", 32, AllReduce, 4e9, ("ring", "Simple"));
    check("dgx-h100", 8, AllGather, 4e9, ("ring", "Simple"));
    check("dgx-h100", 8, Broadcast, 4e9, ("ring", "Simple"));
    // Large with switches that reduce; of B200s from six GPUs on (stas00/ml-engineering network/README.md).
    check("dgx-h100", 8, AllReduce, 4e9, ("nvls", "Simple"));
    check("aws-p5:2", 16, AllReduce, 256e6, ("nvls-tree", "Simple"));
    for (gpus, expected) in [(4, "ring"), (5, "ring"), (6, "nvls"), (7, "nvls"), (8, "nvls")] {
        check("aws-p6-b200", gpus, AllReduce, 8e9, (expected, "Simple"));
    }
    check("dgx-h100", 8, AllToAll, 8.0, ("direct", "Simple"));
}

/// Slow twin: of all algorithms and protocols that can, none is expected to be faster than the choice.
#[test]
fn the_choice_is_the_least_expected() {
    for (cluster, ranks) in [("dgx-a100:4", 32), ("aws-p5:8", 64), ("aws-g6", 4), ("gcp-a3-mega:2", 16)] {
        let cluster = Cluster::from_name(cluster).unwrap();
        let placement = Placement::new(&(0..ranks).collect::<Vec<_>>(), &cluster);
        for (kind, power) in CollectiveKind::ALL.into_iter().flat_map(|kind| (3..34).map(move |p| (kind, p)))
        {
            let bytes = Bytes::new((1u64 << power) as f64);
            let choice = placement.choose(kind, bytes, &Forced::default()).unwrap();
            let expected = |algorithm: &str, protocol| {
                let algorithm = ALGORITHMS.iter().find(|other| other.name() == algorithm).unwrap();
                algorithm.expected(&Call { kind, bytes, protocol, channels: None }, &placement)
            };
            let least = expected(choice.algorithm, choice.protocol).unwrap();
            for (algorithm, protocol) in ALGORITHMS
                .iter()
                .flat_map(|algorithm| Protocol::ALL.map(|protocol| (algorithm.name(), protocol)))
            {
                let forced =
                    Forced { algorithm: Some(algorithm), protocol: Some(protocol), ..Forced::default() };
                let Some(other) = placement.choose(kind, bytes, &forced) else { continue };
                assert_eq!((other.algorithm, other.protocol), (algorithm, protocol));
                let case = format!("{} {kind} {bytes}: {algorithm} {protocol}", cluster.name);
                assert!(expected(algorithm, protocol).unwrap() >= least, "{case}");
            }
        }
    }
}

#[test]
fn what_is_forced_is_done_or_refused() {
    let placement = |cluster: &str| {
        let cluster = Cluster::from_name(cluster).unwrap();
        Placement::new(&(0..cluster.gpus()).collect::<Vec<_>>(), &cluster)
    };
    let check = |placement: &Placement,
                 kind: CollectiveKind,
                 forced: Forced,
                 expected: Option<(&str, &str, usize)>| {
        let choice = placement.choose(kind, Bytes::new(1e9), &forced);
        let choice = choice.map(|choice| (choice.algorithm, choice.protocol.name(), choice.channels));
        assert_eq!(choice, expected, "{forced:?}");
    };
    let algorithm = |name| Forced { algorithm: Some(name), ..Forced::default() };
    let protocol = |protocol| Forced { protocol: Some(protocol), ..Forced::default() };
    let h100 = placement("dgx-h100");
    check(&h100, AllReduce, Forced::default(), Some(("nvls", "Simple", 24)));
    check(&h100, AllReduce, algorithm("ring"), Some(("ring", "Simple", 24)));
    check(&h100, AllReduce, protocol(Protocol::LowLatency), Some(("ring", "LL", 24)));
    check(&h100, AllReduce, Forced { channels: Some(4), ..algorithm("ring") }, Some(("ring", "Simple", 4)));
    check(&h100, AllGather, algorithm("nvls"), None);
    check(&h100, AllReduce, Forced { protocol: Some(Protocol::LowLatency), ..algorithm("nvls") }, None);
    check(&h100, AllReduce, algorithm("butterfly"), None);
    check(&placement("aws-g6"), AllReduce, protocol(Protocol::LowLatency128), None);
    check(&placement("aws-p4d:2"), AllReduce, protocol(Protocol::LowLatency128), None);
    check(&placement("aws-p5:2"), AllReduce, protocol(Protocol::LowLatency128), Some(("ring", "LL128", 24)));
}

/// With nothing to do what is forced is still what is named, or refused where it does not exist.
#[test]
fn forced_without_work_as_with_it() {
    let cluster = Cluster::from_name("dgx-a100").unwrap();
    let check = |ranks: &[usize], algorithm, protocol, expected: Option<(&str, &str, usize)>| {
        let forced = Forced { algorithm, protocol, channels: Some(3) };
        for kind in [AllReduce, Barrier] {
            let choice = Placement::new(ranks, &cluster).choose(kind, Bytes::ZERO, &forced);
            let named = choice.map(|choice| (choice.algorithm, choice.protocol.name(), choice.channels));
            assert_eq!(named, expected, "{kind} {ranks:?} {forced:?}");
            let free = choice.is_none_or(|choice| choice.time == Seconds::ZERO);
            assert_eq!(free, kind == AllReduce || ranks.len() == 1 || expected.is_none(), "{kind} {ranks:?}");
        }
    };
    for ranks in [&[2][..], &[2, 3]] {
        check(ranks, Some("tree"), Some(Protocol::Simple), Some(("tree", "Simple", 3)));
        check(ranks, Some("ring"), Some(Protocol::LowLatency128), Some(("ring", "LL128", 3)));
        check(ranks, Some("butterfly"), None, None);
    }
}

/// NVLS came after 2.12, which reduces by rings and trees even on switches that can.
#[test]
fn an_old_version_does_not_reduce_in_the_switches() {
    for (nodes, forced) in [("dgx-h100", "nvls"), ("dgx-h100:2", "nvls-tree")] {
        let mut cluster = Cluster::from_name(nodes).unwrap();
        let ranks: Vec<usize> = (0..cluster.gpus()).collect();
        let mut choose = |version: &str, algorithm| {
            cluster.nccl = Nccl::from_name(version).unwrap();
            let forced = Forced { algorithm, ..Forced::default() };
            let choice = Placement::new(&ranks, &cluster).choose(AllReduce, Bytes::new(1e9), &forced);
            choice.map(|choice| choice.algorithm)
        };
        assert_eq!(choose("2.18", None), Some(forced));
        assert_eq!(choose("2.18", Some(forced)), Some(forced));
        assert_eq!(choose("2.12", None), Some("ring"));
        assert_eq!(choose("2.12", Some(forced)), None);
    }
}

/// A version's constants count: the base latency of a ring with LL is 3.6 µs in 2.12 and 6.6 µs later.
#[test]
fn the_version_of_nccl_counts() {
    let mut cluster = Cluster::from_name("dgx-a100").unwrap();
    let mut time = |version: &str| {
        cluster.nccl = Nccl::from_name(version).unwrap();
        let placement = Placement::new(&[0, 1], &cluster);
        Ring.time(&call(AllGather, 0.0, Protocol::LowLatency), &placement).unwrap()
    };
    // One step of 0.47 µs against one of 0.6 µs.
    close(time("2.27") - time("2.12"), 3.0 + 0.13, "one step");
    assert_eq!(time("2.18"), time("2.30"));
}

/// Each algorithm with each protocol takes longer for more.
#[test]
fn more_bytes_take_longer() {
    for name in ["dgx-a100:4", "aws-p5:16", "dgx-1v", "aws-g6", "aws-p6-b200:4", "gb200-nvl72"] {
        let cluster = Cluster::from_name(name).unwrap();
        let placement = Placement::new(&(0..cluster.gpus()).collect::<Vec<_>>(), &cluster);
        for (algorithm, protocol, kind) in ALGORITHMS.iter().flat_map(|algorithm| {
            let kinds = move |protocol| CollectiveKind::ALL.map(move |kind| (algorithm, protocol, kind));
            Protocol::ALL.into_iter().flat_map(kinds)
        }) {
            let times: Vec<_> = (0..120)
                .map(|step| Bytes::new(1.25f64.powi(step)))
                .map_while(|bytes| {
                    algorithm.time(&Call { kind, bytes, protocol, channels: None }, &placement)
                })
                .collect();
            let case = format!("{name} {} {protocol} {kind}", algorithm.name());
            assert!(times.is_empty() || times.len() == 120, "{case}");
            assert!(times.is_sorted() && times.iter().all(|time| time.get().is_finite()), "{case}");
        }
    }
}

#[test]
fn nothing_takes_no_time() {
    let cluster = four_nodes();
    for kind in CollectiveKind::ALL {
        assert_eq!(collective_time(kind, Bytes::new(1e9), &[5], &cluster), Seconds::ZERO);
        assert_eq!(collective_time(kind, Bytes::new(1e9), &[], &cluster), Seconds::ZERO);
        let nothing = collective_time(kind, Bytes::ZERO, &[0, 1], &cluster);
        assert_eq!(nothing == Seconds::ZERO, kind != Barrier, "{kind}");
    }
    assert_eq!(message_time(Bytes::new(1e9), 3, 3, &cluster), Seconds::ZERO);
    assert_eq!(message_time(Bytes::ZERO, 0, 1, &cluster), Seconds::ZERO);
}

#[test]
fn renaming_ranks_changes_nothing() {
    let cluster = four_nodes();
    let sorted = Placement::new(&[0, 1, 6, 7, 9, 11], &cluster);
    assert_eq!(Placement::new(&[11, 0, 7, 9, 1, 6], &cluster), sorted);
    assert_eq!(Placement::new(&[2, 3, 4, 5, 8, 10], &cluster), sorted);
}

/// What training does most: 8 tensor ranks in a node, and 8 data-parallel groups with one rank on each node.
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

#[test]
fn protocols_are_read_by_their_names() {
    for protocol in Protocol::ALL {
        assert_eq!(protocol.name().to_lowercase().parse::<Protocol>().unwrap(), protocol);
    }
    let message = "LL64".parse::<Protocol>().unwrap_err().to_string();
    assert!(message.contains("`LL64`") && message.contains("LL, LL128, Simple"), "{message}");
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
