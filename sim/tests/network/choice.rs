//! NCCL's choice of algorithm and protocol in known cases, and when the user forces them.

use super::{call, close};
use trainwright_sim::network::{
    ALGORITHMS, Algorithm, Call, Forced, Placement, Protocol, Ring, collective_time,
};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast,
};
use trainwright_spec::nccl::Nccl;
use trainwright_spec::units::{Bytes, Seconds};

/// Choices of NCCL that are known, on all GPUs of the nodes.
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

#[test]
fn protocols_are_read_by_their_names() {
    for protocol in Protocol::ALL {
        assert_eq!(protocol.name().to_lowercase().parse::<Protocol>().unwrap(), protocol);
    }
    let message = "LL64".parse::<Protocol>().unwrap_err().to_string();
    assert!(message.contains("`LL64`") && message.contains("LL, LL128, Simple"), "{message}");
}
