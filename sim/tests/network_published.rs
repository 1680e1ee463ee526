//! Collectives against what others measured: the error of each machine and collective, as it is today.

use std::collections::BTreeMap;
use trainwright_sim::network::{Algorithm, Choice};
use trainwright_sim::network::{Forced, Placement, Ring};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind::{self, AllGather, AllToAll, ReduceScatter};
use trainwright_spec::nccl::Nccl;
use trainwright_spec::units::{Bytes, Seconds};

const ROWS: &str = include_str!("../../traces/published/collectives.csv");
const METHODS: &str = include_str!("../../traces/published/collective_methods.csv");

/// Messages are large from here on, and small below the other.
const LARGE: Bytes = Bytes::new(1e6);
const SMALL: Bytes = Bytes::new(65_536.0);

/// How many percentage points worse an error may get before it counts.
const SLACK: f64 = 0.5;

/// A row of a measured sweep.
struct Row {
    source: String,
    cluster: String,
    nodes: usize,
    ranks: usize,
    kind: CollectiveKind,
    bytes: Bytes,
    time: Seconds,
    software: String,
    nccl: Nccl,
    /// Groups that run the same at once, on the other GPUs of the same nodes.
    groups: usize,
    forced: Forced,
    judged: String,
}

/// What the way of measuring adds.
#[derive(Debug, Clone, Copy, Default)]
struct Method {
    /// Time of the host for each call.
    host: Seconds,
    /// Time of one launch where one process drives all GPUs, of an all-to-all and of the others.
    launch: [Seconds; 2],
    /// Copies between the tensor and a list of its parts.
    copies: f64,
}

impl Row {
    /// Rows of collectives on clusters that are described, with a time.
    fn all() -> Vec<Row> {
        ROWS.lines().skip(1).filter_map(Row::read).collect()
    }

    fn read(line: &str) -> Option<Row> {
        let cells: Vec<&str> = line.split(',').collect();
        let [_, cluster, nodes, ranks, kind, bytes, time, _, software, nccl, groups, forced, judged, source] =
            cells[..]
        else {
            panic!("not 14 cells: {line}");
        };
        if cluster.is_empty() || time.is_empty() {
            return None;
        }
        Some(Row {
            source: source.into(),
            cluster: cluster.into(),
            nodes: nodes.parse().unwrap(),
            ranks: ranks.parse().unwrap(),
            // Libraries of their own measure other operations.
            kind: kind.parse().ok()?,
            bytes: Bytes::new(bytes.parse().unwrap()),
            time: Seconds::new(time.parse::<f64>().unwrap() * 1e-6),
            software: software.into(),
            nccl: if nccl.is_empty() { Nccl::default() } else { nccl.parse().unwrap() },
            groups: groups.parse().unwrap(),
            forced: Forced { algorithm: (forced == Ring.name()).then_some(Ring.name()), ..Forced::default() },
            judged: judged.into(),
        })
    }

    fn is_judged(&self) -> bool {
        self.judged == "yes"
    }

    /// Predicted over measured time.
    fn ratio(&self, methods: &BTreeMap<String, Method>) -> f64 {
        let mut cluster = Cluster::from_name(&format!("{}:{}", self.cluster, self.nodes)).unwrap();
        cluster.nccl = self.nccl;
        let (gpus, here) = (cluster.node.gpus.value, self.ranks / self.nodes);
        // A group that is alone on its nodes has all of their NICs.
        if self.nodes > 1 && self.groups == 1 {
            cluster.node.gpus.value = here;
        }
        let apart = if self.nodes > 1 && self.groups == 1 { here } else { gpus };
        let ranks: Vec<usize> =
            (0..self.nodes).flat_map(|node| (0..here).map(move |rank| apart * node + rank)).collect();
        let mut placement = Placement::new(&ranks, &cluster);
        let method = methods.get(&self.software).copied().unwrap_or_default();
        let launch = method.launch[usize::from(self.kind == AllToAll)];
        placement.start = placement.start.max(self.ranks as f64 * launch);
        let Choice { time, .. } = placement.choose(self.kind, self.bytes, &self.forced).unwrap();
        let copied = match self.kind {
            AllGather | ReduceScatter | AllToAll => method.copies * (2.0 * self.bytes / placement.memory),
            _ => Seconds::ZERO,
        };
        (time + method.host + copied) / self.time
    }

    /// Machine, size of the group and collective.
    fn class(&self) -> String {
        let place = match self.nodes {
            1 => format!("{} GPUs", self.ranks),
            2..=4 => format!("{} nodes", self.nodes),
            _ => "5 and more nodes".to_string(),
        };
        format!("{}, {place}, {}", self.cluster, self.kind)
    }
}

fn methods() -> BTreeMap<String, Method> {
    let read = |line: &str| {
        let cells: Vec<&str> = line.splitn(6, ',').collect();
        let number = |cell: usize| cells[cell].parse::<f64>().unwrap();
        let seconds = |cell: usize| Seconds::new(number(cell) * 1e-6);
        let method = Method { host: seconds(1), launch: [seconds(2), seconds(3)], copies: number(4) };
        (cells[0].to_string(), method)
    };
    METHODS.lines().skip(1).map(read).collect()
}

/// |ratio − 1| of each row in percent, sorted, by what `group` says.
fn errors(rows: &[&Row], group: impl Fn(&Row) -> String) -> BTreeMap<String, Vec<f64>> {
    let methods = methods();
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows {
        errors.entry(group(row)).or_default().push(100.0 * (row.ratio(&methods) - 1.0).abs());
    }
    errors.values_mut().for_each(|errors| errors.sort_by(f64::total_cmp));
    errors
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[(part * (sorted.len() - 1) as f64).round() as usize]
}

/// Median and 90th percentile.
fn summary(sorted: &[f64]) -> (f64, f64) {
    (quantile(sorted, 0.5), quantile(sorted, 0.9))
}

fn print(title: &str, errors: &BTreeMap<String, Vec<f64>>) {
    println!("\n{title:<50} {:>4} {:>7} {:>7}", "rows", "median", "p90");
    for (name, errors) in errors {
        let (median, p90) = summary(errors);
        println!("{name:<50} {:>4} {median:>6.1}% {p90:>6.1}%", errors.len());
    }
}

/// Median and 90th percentile of the error of messages of 1 MB and more, in percent.
#[rustfmt::skip]
const TODAY: [(&str, f64, f64); 69] = [
    ("aws-g4dn, 2 nodes, all-reduce", 5.2, 6.9),
    ("aws-g6, 2 GPUs, all-gather", 0.2, 0.5),
    ("aws-g6, 4 GPUs, all-gather", 0.4, 0.7),
    ("aws-g6, 8 GPUs, all-gather", 0.6, 0.9),
    ("aws-p3, 4 GPUs, all-gather", 37.1, 37.9),
    ("aws-p3, 8 GPUs, all-gather", 3.9, 5.8),
    ("aws-p4d, 2 GPUs, all-gather", 5.2, 10.1),
    ("aws-p4d, 4 GPUs, all-gather", 2.3, 5.7),
    ("aws-p4d, 8 GPUs, all-gather", 2.4, 5.5),
    ("aws-p5, 2 GPUs, send-receive", 7.0, 10.9),
    ("aws-p5, 2 nodes, all-reduce", 5.7, 25.5),
    ("aws-p5, 3 nodes, send-receive", 1.4, 15.9),
    ("aws-p5, 4 nodes, all-to-all", 12.9, 20.4),
    ("aws-p5, 4 nodes, send-receive", 1.9, 17.7),
    ("aws-p5, 5 and more nodes, all-reduce", 8.9, 18.0),
    ("aws-p5, 5 and more nodes, all-to-all", 5.6, 14.6),
    ("aws-p5, 5 and more nodes, send-receive", 1.1, 9.7),
    ("aws-p5, 8 GPUs, all-reduce", 3.8, 10.3),
    ("aws-p5, 8 GPUs, all-to-all", 3.0, 7.0),
    ("aws-p6-b200, 4 GPUs, all-reduce", 0.3, 0.3),
    ("aws-p6-b200, 4 nodes, all-reduce", 6.0, 20.1),
    ("aws-p6-b200, 5 GPUs, all-reduce", 0.0, 0.0),
    ("aws-p6-b200, 6 GPUs, all-reduce", 1.3, 1.3),
    ("aws-p6-b200, 7 GPUs, all-reduce", 0.5, 0.5),
    ("aws-p6-b200, 8 GPUs, all-reduce", 1.2, 1.2),
    ("azure-nd-h100-v5, 8 GPUs, all-reduce", 4.8, 12.9),
    ("dgx-1v, 2 GPUs, all-reduce", 1.2, 7.9),
    ("dgx-1v, 2 GPUs, all-to-all", 5.3, 52.3),
    ("dgx-1v, 2 GPUs, reduce-scatter", 18.7, 34.4),
    ("dgx-1v, 3 GPUs, all-reduce", 7.6, 15.9),
    ("dgx-1v, 4 GPUs, all-gather", 8.3, 40.1),
    ("dgx-1v, 4 GPUs, all-reduce", 6.5, 13.6),
    ("dgx-1v, 4 GPUs, reduce-scatter", 10.4, 29.2),
    ("dgx-1v, 6 GPUs, all-reduce", 6.7, 14.9),
    ("dgx-1v, 7 GPUs, all-reduce", 2.9, 9.0),
    ("dgx-1v, 8 GPUs, all-gather", 3.3, 41.7),
    ("dgx-1v, 8 GPUs, all-reduce", 6.4, 14.8),
    ("dgx-1v, 8 GPUs, all-to-all", 8.9, 15.8),
    ("dgx-1v, 8 GPUs, reduce-scatter", 4.4, 32.9),
    ("dgx-1v-roce, 2 nodes, all-reduce", 2.1, 21.9),
    ("dgx-a100, 2 GPUs, all-reduce", 4.1, 6.2),
    ("dgx-a100, 2 nodes, all-reduce", 3.8, 6.8),
    ("dgx-a100, 3 GPUs, all-reduce", 3.6, 7.9),
    ("dgx-a100, 4 GPUs, all-reduce", 2.1, 9.0),
    ("dgx-a100, 4 nodes, all-reduce", 8.2, 20.4),
    ("dgx-a100, 5 GPUs, all-reduce", 2.2, 13.4),
    ("dgx-a100, 6 GPUs, all-reduce", 2.4, 10.8),
    ("dgx-a100, 7 GPUs, all-reduce", 2.4, 10.3),
    ("dgx-a100, 8 GPUs, all-reduce", 3.1, 11.3),
    ("dgx-a100-40gb, 8 GPUs, all-reduce", 1.4, 7.3),
    ("dgx-a100-40gb, 8 GPUs, all-to-all", 5.2, 14.8),
    ("dgx-a100-40gb, 8 GPUs, broadcast", 2.0, 11.5),
    ("dgx-a100-40gb, 8 GPUs, reduce", 2.1, 12.0),
    ("dgx-b200, 8 GPUs, all-reduce", 0.2, 0.2),
    ("dgx-h100, 8 GPUs, all-reduce", 3.5, 9.6),
    ("gcp-a3-mega, 2 nodes, all-gather", 2.9, 11.6),
    ("gcp-a3-ultra, 2 nodes, all-gather", 3.1, 6.9),
    ("gcp-a3-ultra, 5 and more nodes, all-reduce", 3.9, 24.5),
    ("gtx-1080-ti-4, 2 GPUs, all-reduce", 6.8, 7.0),
    ("gtx-1080-ti-4, 4 GPUs, all-reduce", 4.6, 5.1),
    ("h100-pcie-pair, 2 GPUs, all-reduce", 3.4, 3.4),
    ("hgx-a100-4nic, 3 nodes, all-reduce", 9.5, 10.0),
    ("mi300x-8, 2 GPUs, all-reduce", 5.6, 5.6),
    ("mi300x-8, 2 nodes, all-reduce", 0.9, 2.5),
    ("mi300x-8, 8 GPUs, all-reduce", 10.9, 10.9),
    ("oci-bm-gpu-h100, 2 nodes, all-reduce", 3.2, 7.2),
    ("p100-pcie-8, 2 GPUs, all-reduce", 5.5, 15.7),
    ("p100-pcie-8, 4 GPUs, all-reduce", 1.3, 20.3),
    ("p100-pcie-8, 8 GPUs, all-reduce", 1.5, 19.8),
];

/// Machines that miss a target, with what they have today: groups of 4 V100s, whose wiring the source does not state,
/// and lists of tensors whose times jump (traces/published/README.md).
const MISSED: [(&str, f64, f64); 2] = [("aws-p3", 27.9, 37.6), ("dgx-1v", 7.0, 33.2)];

#[test]
fn large_messages_are_met_as_well_as_today() {
    let rows = Row::all();
    let large: Vec<&Row> = rows.iter().filter(|row| row.is_judged() && row.bytes >= LARGE).collect();
    let classes = errors(&large, Row::class);
    print("machine, group and collective, 1 MB and more", &classes);
    let mut worse = Vec::new();
    for (class, errors) in &classes {
        let (median, p90) = summary(errors);
        match TODAY.iter().find(|(name, ..)| name == class) {
            Some((_, m, p)) if median <= m + SLACK && p90 <= p + SLACK => {}
            limits => worse.push(format!("{class}: {median:.1} {p90:.1}, today's are {limits:?}")),
        }
    }
    let machines = errors(&large, |row| row.cluster.clone());
    print("machine", &machines);
    for (machine, errors) in &machines {
        let (median, p90) = summary(errors);
        let missed = MISSED.iter().find(|(name, ..)| name == machine);
        let (m, p) = missed.map_or((10.0, 25.0), |(_, median, p90)| (median + SLACK, p90 + SLACK));
        if median > m || p90 > p {
            worse.push(format!("{machine}: median {median:.1}, 90th percentile {p90:.1}"));
        }
    }
    print("source", &errors(&large, |row| row.source.chars().take(50).collect()));
    let overall = errors(&large, |_| "all".into());
    print("", &overall);
    let (median, p90) = summary(&overall["all"]);
    assert!(worse.is_empty(), "worse than today:\n{}", worse.join("\n"));
    assert!(median <= 10.0 && p90 <= 25.0, "overall {median:.1} {p90:.1}");
    assert_eq!(classes.len(), TODAY.len());
}

#[test]
fn small_messages_are_within_a_factor_of_one_and_a_half() {
    let (rows, methods) = (Row::all(), methods());
    let mut hits: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_judged() && row.bytes < SMALL) {
        let ratio = row.ratio(&methods);
        let (within, all) = hits.entry(row.class()).or_default();
        *within += usize::from(ratio.max(1.0 / ratio) <= 1.5);
        *all += 1;
    }
    println!("{:<50} {:>9}", "below 64 KiB", "within");
    for (class, (within, all)) in &hits {
        println!("{class:<50} {within:>4}/{all}");
    }
    let (within, all) = hits.values().fold((0, 0), |sum, hits| (sum.0 + hits.0, sum.1 + hits.1));
    println!("{:<50} {within:>4}/{all}", "all");
    assert!(all > 400 && within * 100 >= all * SMALL_WITHIN, "{within} of {all}");
}

/// Percent of small messages within a factor of 1.5 today; 75 is the target.
const SMALL_WITHIN: usize = 92;

/// Rows that are left out: how many for which reason, and what the model makes of them.
#[test]
fn what_is_not_judged_says_why() {
    let lines = ROWS.lines().skip(1).count();
    assert_eq!(lines, 2639);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for line in ROWS.lines().skip(1) {
        *reasons.entry(line.split(',').nth(12).unwrap().into()).or_default() += 1;
    }
    for (reason, rows) in &reasons {
        println!("{rows:>5} {reason}");
        assert!(reason == "yes" || reason.starts_with("no: "), "{reason}");
    }
    assert!(reasons["yes"] * 10 > lines * 7, "{} of {lines} are judged", reasons["yes"]);
    let rows = Row::all();
    let large: Vec<&Row> = rows.iter().filter(|row| !row.is_judged() && row.bytes >= LARGE).collect();
    print("not judged", &errors(&large, Row::class));
}

/// Groups of 1, 2 and 4 ranks on each of two nodes, whose siblings ran at the same time, against the group of all
/// 16, whose bus bandwidth of 11.26 GB/s sets the NICs of this cluster.
#[test]
fn measured_siblings_share_the_nics_evenly() {
    let rows = Row::all();
    let siblings: Vec<&Row> =
        rows.iter().filter(|row| row.cluster == "a100-ethernet" && row.nodes == 2).collect();
    let errors = errors(&siblings, |row| format!("{} ranks on 2 nodes", row.ranks));
    print("siblings", &errors);
    assert_eq!(errors.len(), 4);
    for (group, errors) in errors {
        assert!(quantile(&errors, 0.5) < 6.0, "{group}: {errors:?}");
    }
}
