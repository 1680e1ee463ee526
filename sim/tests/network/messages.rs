//! Messages between two ranks and among all, by hand.

use super::{MESSAGE, call, close, four_nodes, sourced};
use trainwright_sim::costs::{ClusterCosts, Costs, Query, QueryWork};
use trainwright_sim::network::{
    Algorithm, Direct, Forced, Placement, Protocol, collective_time, message_time,
};
use trainwright_spec::cluster::{Cluster, Others};
use trainwright_spec::collective::CollectiveKind::{self, AllToAll, Barrier, SendReceive};
use trainwright_spec::program::{Axis, CollectiveCall, Group};
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

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
    // If all-to-alls reach 120 of the 200 GB/s: 250 µs. Rings and messages stay.
    let mut other = cluster.clone();
    other.node.interconnect.exchange_efficiency = Some(sourced(0.6));
    close(time(&other, 40.0, 0..4), MESSAGE + 250.0, "a separate efficiency");
    let [before, after] = [&cluster, &other].map(|cluster| Placement::new(&[0, 1, 2, 3], cluster));
    assert_eq!((after.pair, after.ring_bandwidth()), (before.pair, before.ring_bandwidth()));
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

/// 40 MB of tokens among 4 ranks: 300 µs over the links, longer if the kernel's multiprocessors move them more slowly.
#[test]
fn tokens_by_a_kernel_by_hand() {
    let mut cluster = four_nodes();
    let check = |cluster: &Cluster, (multiprocessors, rate): (usize, Option<u64>), expected: f64| {
        let group = Group { axis: Axis::Expert, ranks: vec![0, 1, 2, 3], members: vec![0] };
        let call = CollectiveCall::TokenKernel { multiprocessors, over_nodes: None, rate };
        let work = QueryWork::Collective { kind: AllToAll, bytes: Bytes::new(40e6), call, group: &group };
        let cost = ClusterCosts::new(cluster).cost(&Query { rank: 0, op: None, work });
        close(cost.time, expected, &format!("{multiprocessors} multiprocessors"));
    };
    check(&cluster, (8, None), MESSAGE + 300.0);
    let communication = cluster.node.gpu.communication.as_mut().unwrap();
    communication.token_rate = Some(sourced(BytesPerSecond::new(10e9)));
    check(&cluster, (20, None), MESSAGE + 300.0); // 40 MB / 200 GB/s are 200 µs
    check(&cluster, (8, None), 500.0);
    check(&cluster, (4, None), 1000.0);
    // The call's rate counts more than the GPU's.
    check(&cluster, (4, Some(20_000_000_000)), 500.0);
}

/// 40 MB of tokens come to each of 8 ranks on two nodes, where 24 MB come to a rank for its node: half of these leave it
/// at 10 GB/s, while three quarters of the 40 MB are passed on at 100 GB/s.
#[test]
fn forwarded_tokens_by_hand() {
    let cluster = four_nodes();
    let check = |ranks: std::ops::Range<usize>, over_nodes: Option<u64>, bytes: f64, expected: f64| {
        let ranks: Vec<usize> = ranks.collect();
        let group = Group { axis: Axis::Expert, ranks, members: vec![0] };
        let call = CollectiveCall::TokenKernel { multiprocessors: 8, over_nodes, rate: None };
        let work = QueryWork::Collective { kind: AllToAll, bytes: Bytes::new(bytes), call, group: &group };
        let cost = ClusterCosts::new(&cluster).cost(&Query { rank: 0, op: None, work });
        close(cost.time, expected, &format!("{over_nodes:?} {bytes}"));
    };
    check(0..8, Some(24_000_000), 40e6, MESSAGE + 20.0 + 1200.0);
    // As many bytes from other nodes as from ranks: what an all-to-all takes.
    check(0..8, Some(40_000_000), 40e6, MESSAGE + 20.0 + 2000.0);
    // Few from other nodes: the links inside are the slower way.
    check(0..8, Some(1_000_000), 40e6, MESSAGE + 300.0);
    // On one node nothing comes from others, however much it is said to be.
    check(0..4, Some(24_000_000), 40e6, MESSAGE + 300.0);
    check(0..4, Some(80_000_000), 40e6, MESSAGE + 300.0);
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

/// Where nodes are unlike, whichever comes first, a collective takes what it takes where all are like the slower ones.
#[test]
fn unlike_nodes_go_at_the_pace_of_the_slowest() {
    let fast = four_nodes();
    let mut slow = four_nodes();
    let nics = slow.node.nics.as_mut().unwrap();
    nics.bandwidth.value = nics.bandwidth.value / 2.0;
    let mixed = |first: &Cluster, last: &Cluster| {
        let others = vec![Others { nodes: 2, node: last.node.clone() }];
        Cluster { others, ..first.clone() }
    };
    let ranks: Vec<usize> = (4..12).collect();
    let time =
        |cluster: &Cluster| collective_time(CollectiveKind::AllGather, Bytes::new(40e6), &ranks, cluster);
    assert!(time(&slow) > time(&fast));
    assert_eq!(time(&mixed(&fast, &slow)), time(&slow));
    assert_eq!(time(&mixed(&slow, &fast)), time(&slow));
}
