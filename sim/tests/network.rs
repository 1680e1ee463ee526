//! Collectives and messages: by hand, in the shapes that training uses, and against measured sweeps.

use std::collections::BTreeMap;
use trainwright_sim::network::{
    ALGORITHMS, Algorithm, InSwitch, Placement, Ring, Tree, collective_time, message_time,
};
use trainwright_spec::cluster::{Cluster, Wiring};
use trainwright_spec::collective::CollectiveKind::{self, AllGather, AllReduce, ReduceScatter};
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// Four nodes of 4 GPUs, in pods of two: 100 GB/s for each GPU inside, 2 × 20 = 40 GB/s for each node outside.
const FOUR_NODES: &str = r#"
nodes = 4
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

/// The same with a memory of 1 TB/s, so that copying a piece of 1 MB takes 2 µs.
fn four_nodes() -> Cluster {
    let mut cluster = Cluster::from_toml(FOUR_NODES, "four-nodes.toml").unwrap();
    cluster.node.gpu.memory_bandwidth.value = BytesPerSecond::new(2e12);
    cluster.node.gpu.achieved.memory.value = 0.5;
    cluster
}

fn close(time: Seconds, microseconds: f64, case: &str) {
    assert!(
        (time.get() * 1e6 - microseconds).abs() < 1e-6 * microseconds.max(1.0),
        "{case}: {time} for {microseconds} µs"
    );
}

/// Microseconds before the first step: NCCL's base latency.
const START: f64 = 8.4;

#[test]
fn a_ring_by_hand() {
    let cluster = four_nodes();
    let check = |kind: CollectiveKind, megabytes: f64, ranks: &[usize], expected: f64| {
        let placement = Placement::new(ranks, &cluster);
        let time = Ring.time(kind, Bytes::new(megabytes * 1e6), &placement).unwrap();
        close(time, START + expected, &format!("{kind:?} {ranks:?}"));
    };
    // One node, 4 ranks: (p − 1)/p · 40 MB / 100 GB/s = 300 µs and 3 steps of 1 µs; an all-reduce does it twice.
    // Reading and writing a piece of 10 MB takes 20 µs.
    check(AllGather, 40.0, &[0, 1, 2, 3], 303.0 + 20.0);
    check(ReduceScatter, 40.0, &[4, 5, 6, 7], 303.0 + 20.0);
    check(AllReduce, 40.0, &[0, 1, 2, 3], 606.0 + 20.0);
    // 2 ranks: 2 · 1/2 · 40 MB / 100 GB/s = 400 µs and 2 steps; pieces of 20 MB.
    check(AllReduce, 40.0, &[2, 3], 402.0 + 40.0);
    // Empty messages cost their steps only.
    check(AllReduce, 0.0, &[0, 1, 2, 3], 6.0);
    // Two whole nodes: 40 GB/s; 7/8 · 40 MB / 40 GB/s = 875 µs; of 7 steps 2 cross (10 µs), 5 do not (1 µs).
    check(AllGather, 40.0, &[0, 1, 2, 3, 4, 5, 6, 7], 900.0 + 10.0);
    check(AllReduce, 40.0, &[0, 1, 2, 3, 4, 5, 6, 7], 1800.0 + 10.0);
    // One rank on each of two nodes, a quarter of the NICs: 1/2 · 40 MB / 10 GB/s = 2000 µs; the one step crosses.
    check(AllGather, 40.0, &[1, 5], 2010.0 + 40.0);
    // Two on one node and one on the other: the smaller share, 10 GB/s, 2/3 · 30 MB = 2000 µs; both steps cross.
    check(AllGather, 30.0, &[0, 1, 4], 2020.0 + 20.0);
    // Over both pods, two nodes in each: uplinks give 2/4 of 10 GB/s; 3/4 · 40 MB / 5 GB/s = 6000 µs, 3 crossings.
    check(AllGather, 40.0, &[0, 4, 8, 12], 6030.0 + 20.0);
    // Over both pods, one node in each: 1/4 of 10 GB/s; 1/2 · 40 MB / 2.5 GB/s = 8000 µs.
    check(AllGather, 40.0, &[0, 8], 8010.0 + 40.0);
}

/// Each rank sends 2 (p − 1)/p · n bytes in a ring all-reduce, half of that in the others.
#[test]
fn the_volume_is_that_of_the_textbook() {
    let mut cluster = Cluster::from_name("gb200-nvl72").unwrap();
    cluster.node.gpu.memory_bandwidth.value = BytesPerSecond::new(1e30);
    let bandwidth = Placement::new(&[0, 1], &cluster).ring_bandwidth();
    for (p, sent) in [(2, 0.5), (4, 0.75), (8, 0.875), (16, 0.9375), (64, 0.984375)] {
        let placement = Placement::new(&(0..p).collect::<Vec<_>>(), &cluster);
        for (kind, rounds) in [(AllReduce, 2.0), (AllGather, 1.0), (ReduceScatter, 1.0)] {
            let time = |bytes: f64| Ring.time(kind, Bytes::new(bytes), &placement).unwrap();
            let volume = (time(1e9) - time(0.0)).get() * bandwidth.get() / 1e9;
            assert!((volume - rounds * sent).abs() < 1e-9, "{kind:?} of {p}: {volume}");
        }
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
    // 10 MB over one of three links: 300 µs and a step of 1 µs.
    close(message_time(Bytes::new(10e6), 0, 1, &cluster), START + 301.0, "message over one link");
}

#[test]
fn trees_by_hand() {
    let cluster = four_nodes();
    let check = |algorithm: &dyn Algorithm, megabytes: f64, ranks: &[usize], expected: Option<f64>| {
        let placement = Placement::new(ranks, &cluster);
        let time = algorithm.time(AllReduce, Bytes::new(megabytes * 1e6), &placement);
        let case = format!("{} {megabytes} MB {ranks:?}", algorithm.name());
        assert_eq!(time.is_some(), expected.is_some(), "{case}");
        if let (Some(time), Some(expected)) = (time, expected) {
            close(time, expected, &case);
        }
    };
    let two_nodes: Vec<usize> = (0..8).collect();
    // Two nodes: D = 2 (3 · 1 + 1 · 10) = 26 µs; V = 2 · 1.3 MB / 40 GB/s = 65 µs; 26 + 65 + 2 √(26 · 65) = 173.2 µs.
    check(&Tree, 1.3, &two_nodes, Some(START + 91.0 + 2.0 * (26.0f64 * 65.0).sqrt()));
    check(&Tree, 0.0, &two_nodes, Some(START + 26.0));
    // One rank on each of two nodes: D = 20, V = 2 · 1 MB / 10 GB/s = 200; 20 + 200 + 2 √4000.
    check(&Tree, 1.0, &[0, 4], Some(START + 220.0 + 2.0 * 4000.0f64.sqrt()));
    check(&Tree, 1.0, &[0, 1], None);
    // In the switches: 50 MB / 50 GB/s = 1000 µs; (√20 + √1000)².
    check(&InSwitch, 50.0, &[0, 1, 2, 3], Some(1020.0 + 2.0 * 20_000.0f64.sqrt()));
    // Two nodes exchange sums once: D = 20 + 2 · 1 · 10 = 40; V = 4 MB / 40 GB/s = 100.
    check(&InSwitch, 4.0, &two_nodes, Some(140.0 + 2.0 * 4000.0f64.sqrt()));
    // Four nodes, two in each pod: 2/4 of 40 GB/s, twice: V = 2 · 4 MB / 20 GB/s = 400; D = 20 + 2 · 2 · 10 = 60.
    check(&InSwitch, 4.0, &(0..16).collect::<Vec<_>>(), Some(460.0 + 2.0 * 24_000.0f64.sqrt()));
    check(&InSwitch, 1.0, &[0, 4], None);
}

#[test]
fn only_the_ring_gathers_and_scatters() {
    let placement = Placement::new(&[0, 1, 2, 3, 4, 5, 6, 7], &four_nodes());
    for kind in [AllGather, ReduceScatter] {
        let able: Vec<&str> = ALGORITHMS
            .iter()
            .filter(|algorithm| algorithm.time(kind, Bytes::new(1e6), &placement).is_some())
            .map(|algorithm| algorithm.name())
            .collect();
        assert_eq!(able, ["ring"]);
    }
}

#[test]
fn the_fastest_algorithm_wins() {
    let cluster = four_nodes();
    let check = |kind: CollectiveKind, bytes: f64, ranks: std::ops::Range<usize>, expected: &str| {
        let placement = Placement::new(&ranks.clone().collect::<Vec<_>>(), &cluster);
        let (algorithm, time) = placement.fastest(kind, Bytes::new(bytes));
        assert_eq!(algorithm.name(), expected, "{kind:?} of {bytes} bytes over {ranks:?}");
        assert_eq!(time, collective_time(kind, Bytes::new(bytes), &ranks.collect::<Vec<_>>(), &cluster));
    };
    check(AllReduce, 1e3, 0..2, "ring");
    // The ring needs 8.4 + 6 µs to begin, the switches 20 µs; large, 2 · 3/4 / 100 against 1 / 50 GB/s.
    check(AllReduce, 1e3, 0..4, "ring");
    check(AllReduce, 1e9, 0..4, "ring");
    // 16 ranks: ring 2 (4 · 10 + 11 · 1) = 102 µs, tree 2 (3 + 20) = 46 µs, switches 20 + 40 = 60 µs.
    check(AllReduce, 1e0, 0..16, "tree");
    check(AllReduce, 1e9, 0..16, "ring");
    check(AllGather, 1e9, 0..16, "ring");
}

#[test]
fn nothing_takes_no_time() {
    let cluster = four_nodes();
    for kind in [AllReduce, AllGather, ReduceScatter] {
        assert_eq!(collective_time(kind, Bytes::new(1e9), &[5], &cluster), Seconds::ZERO);
        assert_eq!(collective_time(kind, Bytes::new(1e9), &[], &cluster), Seconds::ZERO);
        assert_eq!(collective_time(kind, Bytes::ZERO, &[0, 1], &cluster), Seconds::ZERO);
    }
    assert_eq!(message_time(Bytes::new(1e9), 3, 3, &cluster), Seconds::ZERO);
    assert_eq!(message_time(Bytes::ZERO, 0, 1, &cluster), Seconds::ZERO);
}

#[test]
fn a_message_by_hand() {
    let cluster = four_nodes();
    let check = |from: usize, to: usize, expected: f64| {
        close(
            message_time(Bytes::new(10e6), from, to, &cluster),
            START + expected,
            &format!("{from} to {to}"),
        );
    };
    check(0, 3, 101.0); // 10 MB / 100 GB/s + 1 µs
    check(0, 4, 1010.0); // a quarter of 40 GB/s: 1000 µs + 10 µs
    check(7, 0, 1010.0);
    check(0, 8, 4010.0); // out of the pod: a quarter of that
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
    let cluster = Cluster::from_name("dgx-a100:4").unwrap();
    let tensor = Placement::new(&(0..8).collect::<Vec<_>>(), &cluster);
    assert_eq!((tensor.nodes, tensor.between), (1, None));
    assert!((tensor.ring_bandwidth().get() - 0.805 * 300e9).abs() < 1.0);
    let data = Placement::new(&[3, 11, 19, 27], &cluster);
    assert_eq!((data.nodes, data.ranks_per_node), (4, 1));
    assert!((data.ring_bandwidth().get() - 0.955 * 200e9 / 8.0).abs() < 1.0);
    // The eight groups move what one group of all 32 ranks with eight times the bytes would: as fast, but for the
    // steps and the part of the ring that stays in the node.
    let all = Placement::new(&(0..32).collect::<Vec<_>>(), &cluster);
    assert!((all.ring_bandwidth().get() / data.ring_bandwidth().get() - 8.0).abs() < 1e-9);
}

/// A row of a measured sweep.
struct Row {
    sweep: String,
    cluster: Cluster,
    ranks: Vec<usize>,
    kind: CollectiveKind,
    bytes: Bytes,
    time: Seconds,
}

/// Groups of 1, 2 and 4 ranks on each of two nodes against the group of all 16, whose bus bandwidth of 11.26 GB/s
/// sets the NICs of this cluster: the source ran the sibling groups at the same time.
#[test]
fn measured_siblings_share_the_nics_evenly() {
    let cluster = r#"
        nodes = 2
        node.gpu = "a100-40gb-sxm"
        node.gpus = 8
        node.interconnect = { kind = "a", bandwidth = "300 GB/s", efficiency = 0.805, latency = "3.4 us" }
        node.nics = { kind = "b", count = 1, bandwidth = "12.5 GB/s", efficiency = 0.9, latency = "30 us" }
    "#;
    let cluster = Cluster::from_toml(cluster, "siblings.toml").unwrap();
    let rows = include_str!("data/collectives_siblings.csv").lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.splitn(8, ',').collect();
        let ranks_per_node: usize = cells[2].parse().unwrap();
        let ranks = (0..2).flat_map(|node| (0..ranks_per_node).map(move |rank| 8 * node + rank)).collect();
        row(cells[0], cluster.clone(), ranks, cells[3], cells[4], cells[5])
    });
    let errors = errors_by(rows.collect(), |row| row.ranks.len().to_string());
    assert_eq!(errors.len(), 4);
    for (ranks, errors) in errors {
        println!("{ranks} ranks on 2 nodes: median error {:.1} %", 100.0 * median(&errors));
        assert!(median(&errors) < 0.06, "{ranks} ranks on 2 nodes: {errors:?}");
    }
}

/// How much worse an error may get, in percentage points, before it counts.
const SLACK: f64 = 0.5;

/// Median and 90th percentile of |predicted / measured − 1| in percent that messages of 1 MiB and more have today.
#[rustfmt::skip]
const TODAY: [(&str, f64, f64); 45] = [
    ("aws-g6, 2 GPUs, all-gather", 33.8, 35.2),
    ("aws-g6, 4 GPUs, all-gather", 10.1, 11.9),
    ("aws-g6, 8 GPUs, all-gather", 0.8, 2.7),
    ("aws-p4d, 2 GPUs, all-gather", 26.4, 41.2),
    ("aws-p4d, 4 GPUs, all-gather", 20.3, 37.4),
    ("aws-p4d, 8 GPUs, all-gather", 18.4, 33.0),
    ("aws-p5, 2 nodes, all-reduce", 6.1, 25.4),
    ("aws-p5, 5 to 16 nodes, all-reduce", 6.1, 15.7),
    ("aws-p5, 8 GPUs, all-reduce", 3.4, 8.2),
    ("aws-p6-b200, 4 GPUs, all-reduce", 6.3, 6.3),
    ("aws-p6-b200, 4 nodes, all-reduce", 5.0, 20.6),
    ("aws-p6-b200, 5 GPUs, all-reduce", 11.5, 11.5),
    ("aws-p6-b200, 6 GPUs, all-reduce", 2.5, 2.5),
    ("aws-p6-b200, 7 GPUs, all-reduce", 1.2, 1.2),
    ("aws-p6-b200, 8 GPUs, all-reduce", 0.0, 0.0),
    ("azure-nd-h100-v5, 8 GPUs, all-reduce", 4.6, 11.0),
    ("dgx-1v, 2 GPUs, all-reduce", 100.2, 116.4),
    ("dgx-1v, 3 GPUs, all-reduce", 16.9, 17.1),
    ("dgx-1v, 4 GPUs, all-gather", 16.1, 22.4),
    ("dgx-1v, 4 GPUs, all-reduce", 30.8, 34.5),
    ("dgx-1v, 6 GPUs, all-reduce", 50.9, 52.4),
    ("dgx-1v, 7 GPUs, all-reduce", 24.4, 29.9),
    ("dgx-1v, 8 GPUs, all-gather", 10.4, 24.7),
    ("dgx-1v, 8 GPUs, all-reduce", 5.3, 29.7),
    ("dgx-a100, 2 GPUs, all-reduce", 23.5, 46.4),
    ("dgx-a100, 2 nodes, all-reduce", 3.2, 14.5),
    ("dgx-a100, 3 GPUs, all-reduce", 17.4, 47.5),
    ("dgx-a100, 4 GPUs, all-reduce", 12.9, 28.5),
    ("dgx-a100, 4 nodes, all-reduce", 3.6, 14.5),
    ("dgx-a100, 5 GPUs, all-reduce", 14.6, 24.1),
    ("dgx-a100, 6 GPUs, all-reduce", 11.1, 23.2),
    ("dgx-a100, 7 GPUs, all-reduce", 10.4, 19.2),
    ("dgx-a100, 8 GPUs, all-reduce", 8.7, 22.5),
    ("dgx-a100-40gb, 8 GPUs, all-reduce", 9.4, 23.4),
    ("dgx-b200, 8 GPUs, all-reduce", 13.3, 13.3),
    ("dgx-h100, 8 GPUs, all-reduce", 2.7, 10.4),
    ("gcp-a3-mega, 2 nodes, all-gather", 1.4, 6.4),
    ("gcp-a3-ultra, 2 nodes, all-gather", 2.0, 8.1),
    ("gcp-a3-ultra, 5 to 16 nodes, all-reduce", 5.5, 23.3),
    ("h100-pcie-pair, 2 GPUs, all-reduce", 0.2, 0.2),
    ("hgx-a100-4nic, 3 nodes, all-reduce", 7.6, 8.2),
    ("mi300x-8, 2 GPUs, all-reduce", 5.7, 5.7),
    ("mi300x-8, 2 nodes, all-reduce", 0.5, 0.7),
    ("mi300x-8, 8 GPUs, all-reduce", 11.4, 11.4),
    ("oci-bm-gpu-h100, 2 nodes, all-reduce", 4.4, 7.9),
];

#[test]
fn measured_sweeps_are_met_as_well_as_today() {
    let rows = include_str!("data/collectives.csv").lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.splitn(9, ',').collect();
        let cluster = Cluster::from_name(&format!("{}:{}", cells[1], cells[2])).unwrap();
        let (nodes, ranks): (usize, usize) = (cells[2].parse().unwrap(), cells[3].parse().unwrap());
        let (here, gpus) = (ranks / nodes, cluster.node.gpus.value);
        let ranks = (0..nodes).flat_map(|node| (0..here).map(move |rank| gpus * node + rank)).collect();
        row(cells[0], cluster, ranks, cells[4], cells[5], cells[6])
    });
    let large: Vec<Row> = rows.filter(|row| row.bytes >= Bytes::new(1_048_576.0)).collect();
    let errors = errors_by(large, |row| {
        let place = match row.cluster.nodes {
            1 => format!("{} GPUs", row.ranks.len()),
            2..=4 => format!("{} nodes", row.cluster.nodes),
            _ => "5 to 16 nodes".to_string(),
        };
        format!("{}, {place}, {}", row.cluster.node.name, row.kind.name())
    });
    println!("{:<42} {:>4} {:>7} {:>7}", "machine and collective", "rows", "median", "p90");
    let mut worse = Vec::new();
    for (machine, errors) in &errors {
        let (median, p90) = (100.0 * median(errors), 100.0 * quantile(errors, 0.9));
        println!("{machine:<42} {:>4} {median:>6.1}% {p90:>6.1}%", errors.len());
        match TODAY.iter().find(|(name, ..)| name == machine) {
            Some((_, m, p)) if median <= m + SLACK && p90 <= p + SLACK => {}
            limits => worse.push(format!("{machine}: {median:.1} {p90:.1}, today's are {limits:?}")),
        }
    }
    assert!(worse.is_empty(), "worse than today:\n{}", worse.join("\n"));
    assert_eq!(errors.len(), TODAY.len());
}

fn row(sweep: &str, cluster: Cluster, ranks: Vec<usize>, kind: &str, bytes: &str, microseconds: &str) -> Row {
    let kind = [AllReduce, AllGather, ReduceScatter].into_iter().find(|known| known.name() == kind).unwrap();
    let (bytes, microseconds): (f64, f64) = (bytes.parse().unwrap(), microseconds.parse().unwrap());
    Row {
        sweep: sweep.into(),
        cluster,
        ranks,
        kind,
        bytes: Bytes::new(bytes),
        time: Seconds::new(microseconds * 1e-6),
    }
}

/// The sorted relative errors of each group of rows.
fn errors_by(rows: Vec<Row>, group: impl Fn(&Row) -> String) -> BTreeMap<String, Vec<f64>> {
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows {
        let predicted = collective_time(row.kind, row.bytes, &row.ranks, &row.cluster);
        let error = (predicted / row.time - 1.0).abs();
        assert!(error.is_finite(), "{}", row.sweep);
        errors.entry(group(&row)).or_default().push(error);
    }
    errors.values_mut().for_each(|errors| errors.sort_by(f64::total_cmp));
    errors
}

fn median(sorted: &[f64]) -> f64 {
    quantile(sorted, 0.5)
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[(part * (sorted.len() - 1) as f64).round() as usize]
}
