//! Times of rings and trees, by hand and by their properties.

use super::{CROSSING, START, call, close, four_nodes, sourced};
use trainwright_sim::network::{
    ALGORITHMS, Algorithm, Call, Direct, Nvls, NvlsTree, Placement, Protocol, Ring, Tree, collective_time,
};
use trainwright_spec::cluster::{Cluster, Generation};
use trainwright_spec::collective::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Reduce, ReduceScatter, SendReceive,
};
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

#[test]
fn a_ring_by_hand() {
    let cluster = four_nodes();
    let check = |kind: CollectiveKind, megabytes: f64, ranks: &[usize], expected: f64| {
        let placement = Placement::new(ranks, &cluster);
        let time = Ring.time(&call(kind, megabytes, Protocol::Simple), &placement).unwrap();
        close(time, START + expected, &format!("{kind:?} {ranks:?}"));
    };
    // One node, 4 ranks: (p − 1)/p · 40 MB / 100 GB/s = 300 µs and 3 steps of 1 µs; an all-reduce does it twice.
    // Reading and writing a chunk of 10 MB takes 20 µs.
    check(AllGather, 40.0, &[0, 1, 2, 3], 303.0 + 20.0);
    check(ReduceScatter, 40.0, &[4, 5, 6, 7], 303.0 + 20.0);
    check(AllReduce, 40.0, &[0, 1, 2, 3], 606.0 + 20.0);
    // 2 ranks: 2 · 1/2 · 40 MB / 100 GB/s = 400 µs and 2 steps; chunks of 20 MB.
    check(AllReduce, 40.0, &[2, 3], 402.0 + 40.0);
    // A stream from one end to the other: 40 MB / 100 GB/s and 3 steps.
    check(Broadcast, 40.0, &[0, 1, 2, 3], 403.0);
    check(Reduce, 40.0, &[0, 1, 2, 3], 403.0);
    // Empty messages cost their steps only.
    check(AllReduce, 0.0, &[0, 1, 2, 3], 6.0);
    check(Barrier, 0.0, &[0, 1, 2, 3], 6.0);
    // All GPUs of two nodes: 40 GB/s; 7/8 · 40 MB / 40 GB/s = 875 µs; of 7 steps 2 cross, 5 do not (1 µs).
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

/// What NCCL expects of a ring: between nodes no step inside is shorter than three times its overhead of 1 µs with Simple, and it
/// counts one crossing on two nodes.
#[test]
fn an_expected_ring_by_hand() {
    let mut cluster = four_nodes();
    cluster.node.nics.as_mut().unwrap().reported_latency = Some(sourced(Seconds::new(10e-6)));
    let check = |kind: CollectiveKind, megabytes: f64, ranks: std::ops::Range<usize>, expected: f64| {
        let placement = Placement::new(&ranks.clone().collect::<Vec<_>>(), &cluster);
        let time = Ring.expected(&call(kind, megabytes, Protocol::Simple), &placement).unwrap();
        close(time, expected, &format!("{kind:?} {megabytes} MB {ranks:?}"));
    };
    // One node: 3 steps of 1 µs and 300 µs; an all-reduce does it twice.
    check(AllGather, 40.0, 0..4, START + 303.0);
    check(AllReduce, 40.0, 0..4, START + 606.0);
    // Two nodes: 6 steps of 3 µs, one crossing of 14 µs and twice the 10 that the NICs report, 875 µs of bytes.
    check(AllGather, 40.0, 0..8, START + 18.0 + CROSSING + 875.0);
    // An all-reduce counts all but the bytes 1.4 times on Ampere, if it is not of a few bytes.
    check(AllReduce, 40.0, 0..8, 1.4 * (START + 36.0 + 2.0 * CROSSING) + 1750.0);
    check(AllReduce, 0.0, 0..8, START + 36.0 + 2.0 * CROSSING);
}

/// NICs over which the steps of a ring follow each other no faster than every 25 µs.
#[test]
fn a_ring_with_a_gap_by_hand() {
    let mut cluster = four_nodes();
    let two_nodes: Vec<usize> = (0..8).collect();
    let check = |cluster: &Cluster, kind: CollectiveKind, protocol: Protocol, expected: f64| {
        let time = Ring.time(&call(kind, 0.0, protocol), &Placement::new(&two_nodes, cluster)).unwrap();
        close(time, expected, &format!("{kind:?} {protocol}"));
    };
    // Two of 7 steps cross, 5 take 1 µs: 73 µs.
    check(&cluster, AllGather, Protocol::Simple, START + 2.0 * CROSSING + 5.0);
    cluster.node.nics.as_mut().unwrap().ring_gap = Some(sourced(Seconds::new(25e-6)));
    // 7 steps of 25 µs are longer.
    check(&cluster, AllGather, Protocol::Simple, START + 7.0 * 25.0);
    check(&cluster, ReduceScatter, Protocol::Simple, START + 7.0 * 25.0);
    check(&cluster, AllGather, Protocol::LowLatency128, 14.0 + 7.0 * 25.0);
    // A gap that is shorter than the crossings is not seen: 7 steps of 10 µs are 70 µs.
    let mut short = cluster.clone();
    short.node.nics.as_mut().unwrap().ring_gap = Some(sourced(Seconds::new(10e-6)));
    check(&short, AllGather, Protocol::Simple, START + 2.0 * CROSSING + 5.0);
    // Steps of 1 MB where the gap was measured with 5 MB and more: a fifth of it is 5 µs, so that 2 crossings and 5 steps take
    // longer; with 4 MB 7 steps of 20 µs do. Then 7/8 · n / 40 GB/s, and the copy of a step.
    let mut large = cluster.clone();
    large.node.nics.as_mut().unwrap().ring_gap_step = Some(sourced(Bytes::new(5e6)));
    for (megabytes, latency) in
        [(8.0, 2.0 * CROSSING + 5.0), (32.0, 7.0 * 20.0), (40.0, 7.0 * 25.0), (80.0, 7.0 * 25.0)]
    {
        let placement = Placement::new(&two_nodes, &large);
        let time = Ring.time(&call(AllGather, megabytes, Protocol::Simple), &placement).unwrap();
        let bytes = megabytes * (875.0 / 40.0 + 2.0 / 8.0);
        close(time, START + latency + bytes, &format!("{megabytes} MB"));
    }
    // Bytes come on top: 7/8 · 40 MB / 40 GB/s, and the copy of 5 MB.
    let time = |ranks: &[usize], kind, protocol| {
        Ring.time(&call(kind, 40.0, protocol), &Placement::new(ranks, &cluster)).unwrap()
    };
    let gather = time(&two_nodes, AllGather, Protocol::Simple);
    close(gather, START + 175.0 + 875.0 + 10.0, "40 MB");
    // Not in a node, not for other collectives, not with LL, and NCCL does not know it.
    close(time(&[0, 1, 2, 3], AllGather, Protocol::Simple), START + 303.0 + 20.0, "one node");
    let plain = four_nodes();
    for (kind, protocol) in [
        (AllReduce, Protocol::Simple),
        (Broadcast, Protocol::Simple),
        (Barrier, Protocol::Simple),
        (AllGather, Protocol::LowLatency),
    ] {
        let on = |cluster| Ring.time(&call(kind, 40.0, protocol), &Placement::new(&two_nodes, cluster));
        assert_eq!(on(&cluster), on(&plain), "{kind:?} {protocol}");
    }
    let expected = |cluster| {
        Ring.expected(&call(AllGather, 40.0, Protocol::Simple), &Placement::new(&two_nodes, cluster))
    };
    assert_eq!(expected(&cluster), expected(&plain));
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
    (cluster.node.interconnect.ramp, cluster.node.interconnect.exchange_efficiency) = (None, None);
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
fn parts_of_every_node_of_the_catalog_have_collectives() {
    for name in trainwright_spec::catalog::names("nodes") {
        let Ok(cluster) = Cluster::from_name(name) else { continue };
        let mut before = Seconds::ZERO;
        for gpus in (1..cluster.node.gpus.value).filter(|gpus| gpus.is_power_of_two()) {
            let Some(part) = cluster.with_fewer_gpus(gpus) else { continue };
            let ranks: Vec<usize> = (0..gpus).collect();
            let time = collective_time(AllReduce, Bytes::new(1e6), &ranks, &part);
            assert!(time >= before || gpus > 2, "{name}, {gpus} of its GPUs: {time:?}, {before:?}");
            before = time;
        }
        assert_eq!(cluster.with_fewer_gpus(cluster.node.gpus.value), None, "{name}");
    }
}
