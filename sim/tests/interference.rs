//! Ops that run at the same time against measurements that others published: the error we have today, kept from growing.
//!
//! Each row of `traces/published/overlap.csv` is a matrix product, an all-gather and copies from and to the host, or
//! some of these, put on their streams at once; the time is that until the last is done. The engine is given what each
//! takes alone, and must find the time of all together. How much of the GPU the all-gather takes is what the costs of a
//! cluster say from the catalog: channels from logs, bytes from the volume of the ring. That what is left of
//! multiprocessors and of memory bandwidth multiply was seen in the A100 rows of one node; V100 and L4 had no say in it.
//!
//! Programs have no host copies, so what those take is said here. In the A100 rows they run at the same time as kernels without
//! slowing them, and share their way with what the NICs bring (the AWS nodes' NICs and GPUs sit on the same PCIe
//! switches): `HOST_PATH`. In the V100 and L4 rows each copy takes its time alone before anything else starts: the
//! measuring program's host tensors are not pinned there (a division makes pageable ones of them), so its calls return
//! only when the copy is done.

use serde::Deserialize;
use std::collections::BTreeMap;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::engine::{Graph, Load, OpId, Timing, Traffic, Use};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Axis, Group};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};

const PAGE: &str = include_str!("../../docs/trust.md");

#[derive(Deserialize)]
struct Row {
    gpu: String,
    ranks_per_node: usize,
    nodes: usize,
    active: String,
    allgather_mib: Option<f64>,
    alone_gemm_ms: Option<f64>,
    alone_allgather_ms: Option<f64>,
    alone_h2d_ms: Option<f64>,
    alone_d2h_ms: Option<f64>,
    latency_ms: f64,
}

/// The machines of the rows: the GPU's name in them, nodes of the catalog, whether host copies are asynchronous.
///
/// The V100 nodes have GPUs of half the memory (p3.16xlarge); nothing here depends on it.
const MACHINES: [(&str, &str, bool); 3] = [
    ("A100-SXM4-40GB", "aws-p4d:4", true),
    ("V100-SXM2-16GB", "aws-p3dn:4", false),
    ("L4", "aws-g6:1", false),
];

/// The part of the way between GPU and host memory that each takes when it runs alone: an all-gather between nodes, a
/// copy to the GPU, a copy from it. Of the A100 nodes; the best of a grid of tenths over their rows.
const HOST_PATH: [f64; 3] = [1.0, 0.7, 0.8];

fn milliseconds(time: f64) -> Seconds {
    Seconds::new(1e-3 * time)
}

/// The traffic of the all-gather of a row on each GPU.
fn traffic(row: &Row, cluster: &Cluster, alone: Seconds) -> Traffic {
    let gpus = cluster.node.gpus.value;
    let ranks = (0..row.nodes).flat_map(|node| (0..row.ranks_per_node).map(move |rank| node * gpus + rank));
    let group = Group { axis: Axis::Data, ranks: ranks.collect(), members: vec![0] };
    let bytes = row.allgather_mib.unwrap() * 1048576.0 * Bytes::new(1.0);
    let costs = ClusterCosts::new(cluster);
    let traffic = costs.collective_traffic(CollectiveKind::AllGather, bytes, &group, alone);
    // The rates of these nodes are not those of the catalog's NICs: 10 GB/s of 50, over the host.
    Traffic { between: if row.nodes > 1 { HOST_PATH[0] } else { 0.0 }, ..traffic }
}

/// How long all of a row take together.
fn together(row: &Row) -> Seconds {
    let (_, cluster, asynchronous) = MACHINES.iter().find(|(gpu, ..)| *gpu == row.gpu).expect("a known GPU");
    let cluster = Cluster::from_name(cluster).unwrap();
    let copy = |part| Load::communication(Traffic { between: part, ..Traffic::default() });
    let product = Load { multiprocessor_bound: 1.0, ..Load::default() };
    let gather = |time| (milliseconds(time), Load::communication(traffic(row, &cluster, milliseconds(time))));
    let mut graph = Graph::default();
    let mut add = |time: Seconds, load, after: &[OpId]| {
        let queue = graph.add_queue();
        let op = graph.add(queue, Timing::Takes(time.into()));
        let uses = graph.add_uses(&[Use { device: 0, load, thread: None }]);
        graph.set_uses(op, uses);
        after.iter().for_each(|earlier| graph.wait(op, *earlier));
        op
    };
    // In the order in which the measuring program calls them.
    let mut called: Vec<OpId> = Vec::new();
    for (time, part) in [(row.alone_d2h_ms, HOST_PATH[2]), (row.alone_h2d_ms, HOST_PATH[1])] {
        if let Some(time) = time {
            let after = if *asynchronous { &[] } else { called.as_slice() };
            let op = add(milliseconds(time), copy(part), after);
            called.push(op);
        }
    }
    let after = if *asynchronous { &[] } else { called.as_slice() };
    let kernels =
        [row.alone_allgather_ms.map(gather), row.alone_gemm_ms.map(|time| (milliseconds(time), product))];
    for (time, load) in kernels.into_iter().flatten() {
        add(time, load, after);
    }
    graph.run().unwrap().ended.into_iter().max().unwrap_or(Picoseconds::ZERO).into()
}

/// Absolute relative errors, sorted.
#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    fn add(&mut self, predicted: f64, measured: f64) {
        let error = (predicted / measured - 1.0).abs();
        self.0.insert(self.0.partition_point(|known| *known < error), error);
    }

    /// In percent, median and 90th percentile.
    fn figures(&self) -> [f64; 2] {
        [0.5, 0.9].map(|part| 100.0 * self.0[(part * (self.0.len() - 1) as f64).round() as usize])
    }
}

/// Of this model, of the longest alone, of the sum of all alone.
#[derive(Default)]
struct Compared([Errors; 3]);

impl Compared {
    fn add(&mut self, row: &Row) {
        let alone = [row.alone_gemm_ms, row.alone_allgather_ms, row.alone_h2d_ms, row.alone_d2h_ms];
        let alone = || alone.iter().flatten();
        let longest = alone().fold(0.0, |longest, time| f64::max(longest, *time));
        let model = 1e3 * together(row).get();
        for (errors, predicted) in self.0.iter_mut().zip([model, longest, alone().sum()]) {
            errors.add(predicted, row.latency_ms);
        }
    }

    fn print(&self, gpu: &str, active: &str) {
        let [[median, most], [longest, longest_most], [sum, sum_most]] =
            [0, 1, 2].map(|index| self.0[index].figures());
        println!(
            "{gpu:15} {active:24} {:4} rows: {median:5.1} {most:5.1}   longest {longest:5.1} {longest_most:5.1}   \
             sum {sum:5.1} {sum_most:6.1}",
            self.0[0].0.len(),
        );
    }
}

/// Median and 90th percentile of the error that we have today, in percent.
const TODAY: [(&str, f64, f64); 3] =
    [("A100-SXM4-40GB", 1.0, 14.0), ("L4", 1.5, 6.5), ("V100-SXM2-16GB", 3.1, 7.8)];

/// Rows of a matrix product during an all-gather and nothing else, and the median of their error that we have today, in
/// percent: what training does most, and what `docs/trust.md` says.
const GEMM_AND_GATHER: [(&str, usize, f64); 3] =
    [("A100-SXM4-40GB", 36, 0.4), ("L4", 16, 3.7), ("V100-SXM2-16GB", 36, 4.0)];

/// The largest median error of any combination on any GPU that we have today, in percent.
const WORST_COMBINATION: f64 = 10.3;

/// How much worse than today an error may get, in points of percent, before the test fails.
const MARGIN: f64 = 0.3;

#[test]
fn ops_beside_each_other_take_as_long_as_measured() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/published/overlap.csv");
    let rows: Vec<Row> =
        csv::Reader::from_path(path).unwrap().into_deserialize().map(Result::unwrap).collect();
    let mut combinations: BTreeMap<(&str, &str), Compared> = BTreeMap::new();
    let mut gpus: BTreeMap<&str, Compared> = BTreeMap::new();
    for row in &rows {
        combinations.entry((&row.gpu, &row.active)).or_default().add(row);
        gpus.entry(&row.gpu).or_default().add(row);
    }
    println!("absolute error of the time in %, median and 90th percentile");
    combinations.iter().for_each(|((gpu, active), compared)| compared.print(gpu, active));
    gpus.iter().for_each(|(gpu, compared)| compared.print(gpu, "all"));
    let worst = combinations.values().map(|compared| compared.0[0].figures()[0]).fold(0.0, f64::max);
    println!("largest median of a combination {worst:.1} %");
    for (gpu, median, most) in TODAY {
        let today = gpus[gpu].0[0].figures();
        assert!(
            today[0] <= median + MARGIN && today[1] <= most + MARGIN,
            "{gpu}: {today:?} is worse than today"
        );
    }
    for (gpu, rows, median) in GEMM_AND_GATHER {
        let errors = &combinations[&(gpu, "gemm+all_gather")].0[0];
        let [today, _] = errors.figures();
        assert_eq!(errors.0.len(), rows, "{gpu}");
        assert!(today <= median + MARGIN, "{gpu}: {today} is worse than today");
    }
    let rows: usize = GEMM_AND_GATHER.iter().map(|(_, rows, _)| rows).sum();
    let [a100, l4, v100] = GEMM_AND_GATHER.map(|(_, _, median)| format!("{median:.1} %"));
    for said in [
        format!("{rows} measured matrix products beside an all-gather"),
        format!("error is {a100} on A100, {l4} on L4, {v100} on V100"),
    ] {
        assert!(PAGE.replace('\n', " ").contains(&said), "docs/trust.md does not say: {said}");
    }
    assert!(worst <= WORST_COMBINATION + MARGIN, "{worst} is worse than today");
    assert_eq!(gpus.len(), TODAY.len());
}

#[test]
fn a_product_beside_a_gather_by_hand() {
    // A100: 24 channels of 108 multiprocessors; 2 × 1,555 MB in 10 ms is 0.2 of 1,555 GB/s. While the gather runs the
    // product goes at (1 − 24/108) (1 − 0.2) = 0.6222: of its 20 ms it has done 6.222 when the gather ends.
    let row = Row {
        gpu: "A100-SXM4-40GB".into(),
        ranks_per_node: 8,
        nodes: 1,
        active: "gemm+all_gather".into(),
        allgather_mib: Some(1555e6 / 1048576.0),
        alone_gemm_ms: Some(20.0),
        alone_allgather_ms: Some(10.0),
        alone_h2d_ms: None,
        alone_d2h_ms: None,
        latency_ms: 0.0,
    };
    let expected = 10.0 + 20.0 - 10.0 * (84.0 / 108.0) * 0.8;
    assert!((1e3 * together(&row).get() - expected).abs() < 1e-8);
}
