//! What a cluster must be before anything is computed on it.

use super::{Cluster, Gpu, Node};
use crate::sourced::{Quantity, print_quantity};
use crate::units::Seconds;

/// Larger than any machine that exists by a factor of about fifty; beyond it sizes are typing errors.
const MOST_GPUS: usize = 10_000_000;

/// A value that makes no sense.
pub(crate) struct Fault {
    /// Path of the key, with dots.
    pub key: String,
    /// What was given.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

/// The first fault of a cluster, in the order of its keys.
pub(crate) fn check(cluster: &Cluster) -> Result<(), Fault> {
    at_least_one("nodes", cluster.nodes)?;
    if cluster.nodes.checked_mul(cluster.node.gpus.value).is_none_or(|gpus| gpus > MOST_GPUS) {
        let allowed =
            format!("at most {MOST_GPUS} GPUs in all, here each node has {}", cluster.node.gpus.value);
        return Err(fault("nodes", cluster.nodes.to_string(), &allowed));
    }
    let oversubscription = cluster.fabric.oversubscription.value;
    if !(oversubscription >= 1.0 && oversubscription.is_finite()) {
        return Err(fault(
            "fabric.oversubscription",
            oversubscription.to_string(),
            "a finite number from 1 (non-blocking) up",
        ));
    }
    if let Some(pod_nodes) = &cluster.fabric.pod_nodes {
        at_least_one("fabric.pod_nodes", pod_nodes.value)?;
    }
    if cluster.nodes > 1 && cluster.node.nics.is_none() {
        let allowed = format!("{} nodes can only work together over NICs", cluster.nodes);
        return Err(fault("node.nics", "missing".into(), &allowed));
    }
    check_node(&cluster.node)
}

fn check_node(node: &Node) -> Result<(), Fault> {
    at_least_one("node.gpus", node.gpus.value)?;
    let interconnect = &node.interconnect;
    positive("node.interconnect.bandwidth", &interconnect.bandwidth.value)?;
    part("node.interconnect.efficiency", interconnect.efficiency.value)?;
    short("node.interconnect.latency", interconnect.latency.value)?;
    if let Some(in_switch) = &interconnect.in_switch {
        part("node.interconnect.in_switch.efficiency", in_switch.efficiency.value)?;
        short("node.interconnect.in_switch.latency", in_switch.latency.value)?;
    }
    if let Some(nics) = &node.nics {
        at_least_one("node.nics.count", nics.count.value)?;
        positive("node.nics.bandwidth", &nics.bandwidth.value)?;
        part("node.nics.efficiency", nics.efficiency.value)?;
        short("node.nics.latency", nics.latency.value)?;
    }
    check_gpu(&node.gpu)
}

fn check_gpu(gpu: &Gpu) -> Result<(), Fault> {
    positive("node.gpu.memory", &gpu.memory.value)?;
    positive("node.gpu.memory_bandwidth", &gpu.memory_bandwidth.value)?;
    at_least_one("node.gpu.multiprocessors", gpu.multiprocessors.value)?;
    for (precision, peak) in &gpu.peak {
        positive(&format!("node.gpu.peak.{precision}"), &peak.value)?;
        let key = format!("node.gpu.achieved.matrix.{precision}");
        match gpu.achieved.matrix.get(precision) {
            Some(achieved) => part(&key, achieved.value)?,
            None => return Err(fault(&key, "missing".into(), "every precision with a peak needs one")),
        }
    }
    let parts = [
        ("attention_forward", &gpu.achieved.attention_forward),
        ("attention_backward", &gpu.achieved.attention_backward),
        ("memory", &gpu.achieved.memory),
        ("reduction", &gpu.achieved.reduction),
    ];
    for (key, achieved) in parts {
        part(&format!("node.gpu.achieved.{key}"), achieved.value)?;
    }
    short("node.gpu.achieved.kernel_overhead", gpu.achieved.kernel_overhead.value)
}

fn at_least_one(key: &str, count: usize) -> Result<(), Fault> {
    if count == 0 { Err(fault(key, "0".into(), "at least 1")) } else { Ok(()) }
}

fn positive<T: Quantity>(key: &str, quantity: &T) -> Result<(), Fault> {
    let base = quantity.to_base();
    if base > 0.0 && base.is_finite() {
        return Ok(());
    }
    Err(fault(key, print_quantity(quantity).unwrap_or_else(|| base.to_string()), "more than zero and finite"))
}

fn part(key: &str, efficiency: f64) -> Result<(), Fault> {
    if efficiency > 0.0 && efficiency <= 1.0 {
        return Ok(());
    }
    Err(fault(key, efficiency.to_string(), "more than 0 and at most 1"))
}

fn short(key: &str, latency: Seconds) -> Result<(), Fault> {
    if latency >= Seconds::ZERO && latency <= Seconds::new(1.0) {
        return Ok(());
    }
    Err(fault(key, latency.to_string(), "between 0 and 1 s"))
}

fn fault(key: &str, value: String, allowed: &str) -> Fault {
    Fault { key: key.into(), value, allowed: allowed.into() }
}
