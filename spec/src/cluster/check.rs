//! Checks a cluster before anything is computed on it.

mod fabric;
mod wiring;

use super::{Cluster, Cores, Gpu, Interconnect, NetworkProfile, Node, Processors, Shape};
use crate::sourced::{Quantity, print_quantity};
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// Larger than any machine that exists by a factor of about fifty; beyond it sizes are typing errors.
const MOST_GPUS: usize = 10_000_000;

/// Slower than any that trains models; it keeps times within the simulator's clock.
const SLOWEST_LINK: BytesPerSecond = BytesPerSecond::new(1e6);
const SLOWEST_GPU: FlopsPerSecond = FlopsPerSecond::new(1e9);

/// A value that makes no sense.
pub(crate) struct Fault {
    /// Path of the key, with dots.
    pub key: String,
    /// The given value.
    pub value: String,
    /// The allowed values.
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
    check_node(&cluster.node, cluster.nodes)?;
    fabric::check(cluster)?;
    check_others(cluster)?;
    if cluster.nodes > 1 && cluster.node.nics.is_none() && !matches!(cluster.fabric.shape, Shape::Torus(_)) {
        let allowed = format!("{} nodes can only work together over NICs or a `fabric.torus`", cluster.nodes);
        return Err(fault("node.nics", "missing".into(), &allowed));
    }
    match &cluster.profile {
        Some(profile) => check_profile(profile, cluster),
        None => Ok(()),
    }
}

/// Whether nodes of other kinds can follow the first ones: ranks are counted over nodes of one size, and only fabrics
/// of switches join unlike ones.
fn check_others(cluster: &Cluster) -> Result<(), Fault> {
    let mut left = cluster.nodes;
    for (index, others) in cluster.others.iter().enumerate() {
        let at = |key: &str| format!("others.{index}.{key}");
        if others.nodes == 0 || others.nodes >= left {
            let meaning = "`nodes` counts all, some of the first kind among them";
            let allowed = match left {
                0 | 1 => format!("`nodes` should be more than {}: {meaning}", cluster.nodes),
                _ => format!("from 1 to {}: {meaning}", left - 1),
            };
            return Err(fault(&at("nodes"), others.nodes.to_string(), &allowed));
        }
        left -= others.nodes;
        let (gpus, first) = (others.node.gpus.value, cluster.node.gpus.value);
        if gpus != first {
            let allowed = format!("the {first} of the first nodes: all have as many GPUs");
            return Err(fault(&at("node.gpus"), gpus.to_string(), &allowed));
        }
        check_node(&others.node, cluster.nodes).map_err(|fault| Fault { key: at(&fault.key), ..fault })?;
        if others.node.nics.is_none() {
            return Err(fault(
                &at("node.nics"),
                "missing".into(),
                "nodes of several kinds work together over NICs",
            ));
        }
    }
    let alone = |what: &str| Err(fault("others", format!("{} more kinds", cluster.others.len()), what));
    let kinds = || cluster.kinds().map(|(_, node)| node);
    match &cluster.fabric.shape {
        _ if !cluster.is_mixed() => Ok(()),
        Shape::Torus(_) | Shape::Links(_) => {
            alone("only nodes of one kind on a torus or on a fabric of links")
        }
        _ if cluster.profile.is_some() => {
            alone("only nodes of one kind with measured collectives in `profile`")
        }
        _ if kinds().any(|node| node.cores.is_some()) => {
            alone("only nodes of one kind where ranks are threads")
        }
        _ => Ok(()),
    }
}

fn check_profile(profile: &NetworkProfile, cluster: &Cluster) -> Result<(), Fault> {
    profile.check().map_err(|fault| Fault { key: format!("profile.{}", fault.key), ..fault })?;
    let (gpus, measured) = (cluster.node.gpus.value, profile.gpus_per_node);
    if gpus == measured {
        return Ok(());
    }
    let allowed =
        format!("the profile is of {}, and a node of {} has {gpus} GPUs", profile.cluster, cluster.name);
    Err(fault("profile.gpus_per_node", measured.to_string(), &allowed))
}

fn check_node(node: &Node, nodes: usize) -> Result<(), Fault> {
    at_least_one("node.gpus", node.gpus.value)?;
    check_interconnect("node.interconnect", &node.interconnect)?;
    if let Some(host) = &node.host {
        check_interconnect("node.host", host)?;
    }
    wiring::check(node, nodes)?;
    if let Some(nics) = &node.nics {
        at_least_one("node.nics.count", nics.count.value)?;
        at_least("node.nics.bandwidth", &nics.bandwidth.value, SLOWEST_LINK)?;
        part("node.nics.efficiency", nics.efficiency.value)?;
        short("node.nics.latency", nics.latency.value)?;
        let times = [
            ("reported_latency", &nics.reported_latency),
            ("message_time", &nics.message_time),
            ("exchange_ramp", &nics.exchange_ramp),
            ("ring_gap", &nics.ring_gap),
        ];
        for (key, time) in times.iter().filter_map(|(key, time)| Some((key, time.as_ref()?))) {
            short(&format!("node.nics.{key}"), time.value)?;
        }
        if let Some(channel) = &nics.channel_bandwidth {
            at_least("node.nics.channel_bandwidth", &channel.value, SLOWEST_LINK)?;
        }
        if let Some(step) = &nics.ring_gap_step {
            at_least("node.nics.ring_gap_step", &step.value, Bytes::ZERO)?;
        }
        if let Some(burst) = &nics.burst {
            at_least("node.nics.burst", &burst.value, Bytes::ZERO)?;
        }
    }
    if let Some(processors) = &node.processors {
        check_processors(processors)?;
    }
    if let Some(cores) = &node.cores {
        check_cores(cores)?;
    }
    check_gpu(&node.gpu)
}

fn check_processors(processors: &Processors) -> Result<(), Fault> {
    at_least("node.processors.memory", &processors.memory.value, Bytes::GIB)?;
    let mut links = vec![
        ("memory_bandwidth", &processors.memory_bandwidth),
        ("to_host", &processors.to_host),
        ("from_host", &processors.from_host),
        ("together", &processors.together),
    ];
    if let Some(drives) = &processors.drives {
        at_least("node.processors.drives.capacity", &drives.capacity.value, Bytes::GIB)?;
        links.extend([("drives.read", &drives.read), ("drives.write", &drives.write)]);
    }
    for (key, link) in links {
        at_least(&format!("node.processors.{key}"), &link.value, SLOWEST_LINK)?;
    }
    part("node.processors.update_efficiency", processors.update_efficiency.value)?;
    if let Some(ratio) =
        processors.process_time.as_ref().filter(|ratio| !(0.01..=100.0).contains(&ratio.value))
    {
        return Err(fault("node.processors.process_time", ratio.value.to_string(), "from 0.01 to 100"));
    }
    short("node.processors.copy_latency", processors.copy_latency.value)
}

fn check_cores(cores: &Cores) -> Result<(), Fault> {
    at_least_one("node.cores.count", cores.count.value)?;
    at_least_one("node.cores.threads", cores.threads.value)?;
    if cores.threads.value > cores.count.value {
        let allowed = format!("at most the {} cores", cores.count.value);
        return Err(fault("node.cores.threads", cores.threads.value.to_string(), &allowed));
    }
    if let Some(turns) = &cores.turns {
        for (key, time) in [("slice", turns.slice.value), ("balance", turns.balance.value)] {
            if !(1e-6..=1.0).contains(&time.get()) {
                return Err(fault(&format!("node.cores.turns.{key}"), time.to_string(), "from 1 us to 1 s"));
            }
        }
    }
    if let Some(part) = cores.jitter.iter().find(|part| !(**part >= 0.0 && **part < 1e6)) {
        return Err(fault("node.cores.jitter", part.to_string(), "from 0 to 1,000,000"));
    }
    for (key, rows) in [("copies", &cores.steps.copies), ("adds", &cores.steps.adds)] {
        let key = format!("node.cores.steps.{key}");
        if rows.is_empty() || rows.windows(2).any(|pair| pair[0].bytes >= pair[1].bytes) {
            return Err(fault(
                &key,
                "not a sweep".into(),
                "at least one size, each larger than the one before",
            ));
        }
        if let Some(row) =
            rows.iter().find(|row| !(row.time > Seconds::ZERO && row.time <= Seconds::new(3600.0)))
        {
            return Err(fault(&key, row.time.to_string(), "every time is above 0 and at most an hour"));
        }
    }
    Ok(())
}

fn check_interconnect(key: &str, interconnect: &Interconnect) -> Result<(), Fault> {
    at_least(&format!("{key}.bandwidth"), &interconnect.bandwidth.value, SLOWEST_LINK)?;
    part(&format!("{key}.efficiency"), interconnect.efficiency.value)?;
    short(&format!("{key}.latency"), interconnect.latency.value)?;
    if let Some(exchange) = &interconnect.exchange_efficiency {
        part(&format!("{key}.exchange_efficiency"), exchange.value)?;
    }
    if let Some(ramp) = &interconnect.ramp {
        short(&format!("{key}.ramp"), ramp.value)?;
    }
    if let Some(staging) = &interconnect.staging {
        at_least(&format!("{key}.staging"), &staging.value, SLOWEST_LINK)?;
    }
    if let Some(rings) = &interconnect.rings {
        let key = format!("{key}.rings.through");
        if rings.through.is_empty() {
            return Err(fault(&key, "empty".into(), "a number of rings through 2 GPUs, 3, and so on"));
        }
        if let Some(zero) = rings.through.iter().position(|rings| *rings == 0) {
            let allowed = format!("at least 1 ring through {} GPUs", zero + 2);
            return Err(fault(&key, "0".into(), &allowed));
        }
    }
    if let Some(in_switch) = &interconnect.in_switch {
        part(&format!("{key}.in_switch.efficiency"), in_switch.efficiency.value)?;
        short(&format!("{key}.in_switch.latency"), in_switch.latency.value)?;
    }
    Ok(())
}

fn check_gpu(gpu: &Gpu) -> Result<(), Fault> {
    at_least("node.gpu.memory", &gpu.memory.value, Bytes::GIB)?;
    at_least("node.gpu.memory_bandwidth", &gpu.memory_bandwidth.value, SLOWEST_LINK)?;
    at_least_one("node.gpu.multiprocessors", gpu.multiprocessors.value)?;
    for (precision, peak) in &gpu.peak {
        at_least(&format!("node.gpu.peak.{precision}"), &peak.value, SLOWEST_GPU)?;
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
    if let Some(grouped) = &gpu.achieved.grouped {
        part("node.gpu.achieved.grouped", grouped.value)?;
    }
    if let Some(grouped) = &gpu.achieved.grouped_narrow {
        part("node.gpu.achieved.grouped_narrow", grouped.value)?;
    }
    for (version, reached) in &gpu.achieved.attention {
        let key = format!("node.gpu.achieved.attention.{}", version.name());
        part(&format!("{key}.forward"), reached.forward.value)?;
        part(&format!("{key}.backward"), reached.backward.value)?;
    }
    if let Some(start) = &gpu.achieved.collective_start {
        short("node.gpu.achieved.collective_start", start.value)?;
    }
    short("node.gpu.achieved.kernel_overhead", gpu.achieved.kernel_overhead.value)?;
    if let Some(communication) = &gpu.communication {
        at_least_one("node.gpu.communication.channels", communication.channels.value)?;
        at_least_one("node.gpu.communication.channels_per_nic", communication.channels_per_nic.value)?;
        if let Some(rate) = &communication.token_rate {
            at_least("node.gpu.communication.token_rate", &rate.value, SLOWEST_LINK)?;
        }
        let (channels, most) = (communication.channels.value, gpu.multiprocessors.value);
        if channels >= most {
            let allowed = format!("fewer than the {most} multiprocessors");
            return Err(fault("node.gpu.communication.channels", channels.to_string(), &allowed));
        }
    }
    Ok(())
}

fn at_least_one(key: &str, count: usize) -> Result<(), Fault> {
    if count == 0 { Err(fault(key, "0".into(), "at least 1")) } else { Ok(()) }
}

fn at_least<T: Quantity>(key: &str, quantity: &T, least: T) -> Result<(), Fault> {
    let (base, limit) = (quantity.to_base(), least.to_base());
    if base >= limit && base.is_finite() {
        return Ok(());
    }
    let print = |quantity: &T| print_quantity(quantity).unwrap_or_else(|| quantity.to_base().to_string());
    Err(fault(key, print(quantity), &format!("at least {}", print(&least))))
}

fn part(key: &str, efficiency: f64) -> Result<(), Fault> {
    if (0.01..=1.0).contains(&efficiency) {
        return Ok(());
    }
    Err(fault(key, efficiency.to_string(), "from 0.01 to 1"))
}

fn short(key: &str, latency: Seconds) -> Result<(), Fault> {
    if latency >= Seconds::ZERO && latency <= Seconds::new(1.0) {
        return Ok(());
    }
    Err(fault(key, latency.to_string(), "between 0 and 1 s"))
}

/// The lowest vertex that no chain of `edges` joins to vertex 0; `None` if all are joined.
fn unjoined(vertices: usize, edges: impl Iterator<Item = (usize, usize)>) -> Option<usize> {
    let mut root: Vec<usize> = (0..vertices).collect();
    fn find(root: &mut [usize], mut vertex: usize) -> usize {
        while root[vertex] != vertex {
            root[vertex] = root[root[vertex]];
            vertex = root[vertex];
        }
        vertex
    }
    for (a, b) in edges {
        let (a, b) = (find(&mut root, a), find(&mut root, b));
        root[a.max(b)] = a.min(b);
    }
    (0..vertices).find(|vertex| find(&mut root, *vertex) != 0)
}

pub(super) fn fault(key: &str, value: String, allowed: &str) -> Fault {
    Fault { key: key.into(), value, allowed: allowed.into() }
}
