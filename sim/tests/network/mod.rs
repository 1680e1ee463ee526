//! Collectives and messages: by hand, NCCL's choice in known cases, and properties.

mod algorithms;
mod choice;
mod loads;
mod messages;
mod placement;

use trainwright_sim::network::{Call, Protocol};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
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

/// The same with a memory of 1 TB/s, so that copying a chunk of 1 MB takes 2 µs, and GPUs that start at once.
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
    Sourced::new(value, "test")
}

/// Microseconds before the first step: NCCL's base latency of rings and trees with Simple.
const START: f64 = 8.4;

/// Microseconds of a step between nodes with Simple on GPUs that flush: NCCL's 14 and twice the 10 of the NICs.
const CROSSING: f64 = 34.0;

/// Microseconds before the first byte of a message: `start` of NCCL's direct messages.
const MESSAGE: f64 = 3.7;
