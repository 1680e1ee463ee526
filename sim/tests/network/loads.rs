//! What ops take from their GPU, its links and its cores while they run, by hand.

use super::{MESSAGE, close, four_nodes, sourced};
use trainwright_sim::costs::{ClusterCosts, Cost, Costs, Query, QueryWork};
use trainwright_sim::engine::Traffic;
use trainwright_sim::replay::OperationCosts;
use trainwright_spec::cluster::{Cluster, Cores, MeasuredExchange, MeasuredTime, NetworkWork, StepTimes};
use trainwright_spec::collective::CollectiveKind::{self, AllGather, AllReduce, AllToAll, Barrier};
use trainwright_spec::precision::Precision::Bf16;
use trainwright_spec::program::{Access, Axis, CollectiveCall, Group, Kernel};
use trainwright_spec::units::{Bytes, Flops, FlopsPerSecond, Seconds};

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < 1e-9 * expected.max(1.0), "{what}: {found} for {expected}");
}

fn check_traffic(found: Traffic, [multiprocessors, memory, inside, between]: [f64; 4], what: &str) {
    near(found.multiprocessors, multiprocessors, what);
    near(found.memory, memory, what);
    near(found.inside, inside, what);
    near(found.between, between, what);
}

fn group(ranks: &[usize]) -> Group {
    Group { axis: Axis::Data, ranks: ranks.to_vec(), members: vec![0] }
}

/// 27 channels in a node and 6 for each of two NICs, on 108 multiprocessors; memory of 2 TB/s.
fn with_channels() -> Cluster {
    let mut cluster = four_nodes();
    let communication = cluster.node.gpu.communication.as_mut().unwrap();
    communication.channels = sourced(27);
    communication.channels_per_nic = sourced(6);
    cluster.node.gpu.multiprocessors = sourced(108);
    cluster
}

/// 40 MB in 10 ms, in which a GPU's link carries 1 GB, the NICs of a node 400 MB, its memory 20 GB.
#[test]
fn a_collective_takes_the_links_that_its_bytes_go_through() {
    let cluster = with_channels();
    let check = |kind: CollectiveKind, ranks: &[usize], expected: [f64; 4]| {
        let costs = ClusterCosts::new(&cluster);
        let traffic = costs.collective_traffic(kind, Bytes::new(40e6), &group(ranks), Seconds::new(10e-3));
        check_traffic(traffic, expected, &format!("{kind} {ranks:?}"));
    };
    let (node, two_nodes) = ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]);
    // Three quarters of 40 MB through a link; what is passed on is written and read: 80 MB. An all-reduce does it twice.
    check(AllGather, &node, [0.25, 0.004, 0.03, 0.0]);
    check(AllReduce, &node, [0.25, 0.008, 0.06, 0.0]);
    // Seven eighths, 35 MB, through links and NICs; 12 channels.
    check(AllGather, &two_nodes, [12.0 / 108.0, 0.004, 0.035, 0.0875]);
    // One GPU of a node has a quarter of its NICs; no link inside carries any of the 20 MB.
    check(AllGather, &[1, 5], [12.0 / 108.0, 0.004, 0.0, 0.2]);
    // Three of 4 parts of 10 MB; 3 of 8 parts of 5 MB inside, and from each node 4 · 4 parts to the other.
    check(AllToAll, &node, [0.25, 0.004, 0.03, 0.0]);
    check(AllToAll, &two_nodes, [12.0 / 108.0, 0.004, 0.015, 0.2]);
    // Alone there is nothing to do.
    check(AllGather, &[3], [0.0; 4]);
    let costs = ClusterCosts::new(&cluster);
    let barrier = costs.collective_traffic(Barrier, Bytes::ZERO, &group(&node), Seconds::new(10e-6));
    assert_eq!(barrier, Traffic::default());
}

/// As `forwarded_tokens_by_hand`: 24 MB for each node of 40 MB for each rank, half of them through the NICs, at 4 ranks' 48 MB to
/// 40 GB/s all the time but for the start; 30 MB are passed on inside a node.
#[test]
fn a_kernel_for_tokens_takes_its_multiprocessors() {
    let cluster = with_channels();
    let load = |ranks: &[usize], over_nodes| {
        let group = group(ranks);
        let call = CollectiveCall::TokenKernel { multiprocessors: 54, over_nodes, rate: None };
        let work = QueryWork::Collective { kind: AllToAll, bytes: Bytes::new(40e6), call, group: &group };
        let cost = ClusterCosts::new(&cluster).cost(&Query { rank: 0, op: None, work });
        assert_eq!(cost.load.communicating, 1.0);
        (cost.time.get() * 1e6, cost.load.traffic)
    };
    let (time, traffic) = load(&[0, 1, 2, 3, 4, 5, 6, 7], Some(24_000_000));
    near(time, MESSAGE + 20.0 + 1200.0, "two nodes");
    check_traffic(traffic, [0.5, 40.0 / time, 300.0 / time, 1200.0 / time], "two nodes");
    let (time, traffic) = load(&[0, 1, 2, 3], Some(24_000_000));
    check_traffic(traffic, [0.5, 40.0 / time, 300.0 / time, 0.0], "one node");
}

/// A launch gap of 10 µs in which a kernel takes nothing.
#[test]
fn a_kernel_takes_what_bounds_it_but_for_its_launch_gap() {
    let mut cluster = four_nodes();
    cluster.node.gpu.achieved.kernel_overhead = sourced(Seconds::new(10e-6));
    let load = |kernel: Kernel| {
        let work = QueryWork::Kernel(&kernel);
        let cost = ClusterCosts::new(&cluster).cost(&Query { rank: 0, op: None, work });
        (cost.time, cost.load)
    };
    // 40 MB at 1 TB/s: 40 of 50 µs.
    let half = Bytes::new(20e6);
    let (time, streaming) =
        load(Kernel::Streaming { access: Access::Elementwise, read: half, written: half });
    close(time, 50.0, "streaming");
    near(streaming.memory_bound, 0.8, "streaming");
    assert_eq!((streaming.multiprocessor_bound, streaming.communicating), (0.0, 0.0));
    let (time, product) =
        load(Kernel::Gemm { count: 1, m: 1024, n: 1024, k: 1024, precision: Bf16, adds_to: None });
    near(product.multiprocessor_bound, 1.0 - 10e-6 / time.get(), "product");
    assert_eq!(product.memory_bound, 0.0);
}

/// 312 TFLOP/s in bf16; 2 TB/s of memory.
#[test]
fn operations_of_traces_take_the_longer_of_arithmetic_and_memory() {
    let mut cluster = four_nodes();
    cluster.node.gpu.peak.insert(Bf16, sourced(FlopsPerSecond::new(312e12)));
    let time = |flops, bytes| ClusterCosts::new(&cluster).operations(0, Flops::new(flops), Bytes::new(bytes));
    close(time(312e6, 0.0), 1.0, "arithmetic");
    close(time(312e6, 4e6), 2.0, "memory");
    close(time(936e6, 4e6), 3.0, "arithmetic and less memory");
}

/// Nodes of 4 threads on 4 cores. Copies of up to 1 MB take 100 µs and of 11 MB 2,100 µs; the operating system works 230 µs
/// for each MB that is sent and 20 µs for each that arrives.
fn threads() -> Cluster {
    let mut cluster = four_nodes();
    let row = |megabytes: f64, microseconds: f64| MeasuredTime {
        bytes: Bytes::new(1e6 * megabytes),
        time: Seconds::new(1e-6 * microseconds),
    };
    cluster.node.cores = Some(Cores {
        count: sourced(4),
        threads: sourced(1),
        emulated: false,
        steps: StepTimes {
            source: "a test".into(),
            copies: vec![row(1.0, 100.0), row(11.0, 2100.0)],
            adds: vec![row(1.0, 200.0), row(11.0, 4200.0)],
        },
        network: Some(NetworkWork {
            source: "a test".into(),
            sent: row(1.0, 230.0),
            received: row(1.0, 20.0),
        }),
        crowding: 0.0,
        turns: None,
        jitter: Vec::new(),
        exchanges: Vec::new(),
    });
    cluster
}

/// A rank of three threads on four cores.
#[test]
fn a_kernel_of_threads_takes_their_cores() {
    let mut cluster = threads();
    let cores = cluster.node.cores.as_mut().unwrap();
    (cores.threads, cores.crowding) = (sourced(3), 0.5);
    let kernel = Kernel::Gemm { count: 1, m: 64, n: 64, k: 64, precision: Bf16, adds_to: None };
    let work = QueryWork::Kernel(&kernel);
    let load = ClusterCosts::new(&cluster).cost(&Query { rank: 0, op: None, work }).load;
    assert_eq!((load.cores, load.crowding), (0.75, 0.5));
    assert_eq!((load.multiprocessor_bound, load.memory_bound), (0.0, 0.0));
}

fn message(cluster: &Cluster, to: usize, blocking: bool) -> Cost {
    let work = QueryWork::Message { bytes: Bytes::new(10e6), to, blocking };
    ClusterCosts::new(cluster).cost(&Query { rank: 0, op: None, work })
}

/// 10 MB: a copy takes 1,900 µs; between nodes a rank has 10 GB/s, 1,000 µs, and NICs of 10 µs.
#[test]
fn a_message_of_threads_takes_cores_of_both_nodes() {
    let mut cluster = threads();
    // In a node it changes hands, with one core of 4 all the time.
    let inside = message(&cluster, 1, true);
    close(inside.time, 100.0, "inside");
    assert_eq!((inside.load.cores, inside.delivery), (0.25, None));
    // The link is faster than the copy: the sender waits for all, and its node works 2,300 µs, more than there are.
    let between = message(&cluster, 4, true);
    close(between.time, 1910.0, "between");
    near(between.load.cores, 0.25 * 2300.0 / 1910.0, "between");
    assert_eq!(between.delivery, None);
    // At 100 MB/s it takes 100 ms. The sender's kernels wait for its copy alone.
    let nics = cluster.node.nics.as_mut().unwrap();
    nics.bandwidth.value = nics.bandwidth.value / 100.0;
    let given = message(&cluster, 4, true);
    close(given.time, 1900.0, "given to the system");
    near(given.load.cores, 0.25, "given to the system");
    let delivery = given.delivery.unwrap();
    close(delivery.time, 100_010.0, "delivered");
    // Of 2,300 µs of a core 400 are left at the sender's node; there are 200 at the receiver's.
    near(delivery.cores[0], 0.25 * 400.0 / 100_010.0, "the sender's");
    near(delivery.cores[1], 0.25 * 200.0 / 100_010.0, "the receiver's");
    // Nobody waits for a message on a separate stream, so it is one op until it has arrived.
    let apart = message(&cluster, 4, false);
    close(apart.time, 100_010.0, "apart");
    near(apart.load.cores, 0.25 * 2300.0 / 100_010.0, "apart");
    assert_eq!(apart.delivery, None);
}

/// Costs depend on the op where some op was timed, be it a collective.
#[test]
fn costs_depend_on_the_op_where_its_exchange_was_timed() {
    let mut cluster = threads();
    assert!(!ClusterCosts::new(&cluster).conditions().by_op);
    cluster.node.cores.as_mut().unwrap().exchanges.push(MeasuredExchange {
        op: "reduce update".into(),
        collective: AllReduce,
        ranks: 2,
        measured: MeasuredTime { bytes: Bytes::new(1e6), time: Seconds::new(1e-3) },
    });
    assert!(ClusterCosts::new(&cluster).conditions().by_op);
}
