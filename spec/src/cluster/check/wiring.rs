//! Checks the wiring of a node: every GPU joined to every other, by links that exist.

use super::{Fault, SLOWEST_LINK, at_least, at_least_one, fault, unjoined};
use crate::cluster::{Bridges, Interconnect, Node, Pairs, Wiring};

/// Larger than any node whose GPUs are not joined by switches; routes are found for each two of them.
const MOST_UNSWITCHED: usize = 256;

/// Couples of GPUs within all nodes together, each of which may have links: with those of the fabric and of
/// a host fewer than the simulator can number.
const MOST_COUPLES: usize = 1_000_000_000;

pub(super) fn check(node: &Node, nodes: usize) -> Result<(), Fault> {
    let gpus = node.gpus.value;
    check_links("node.interconnect", &node.interconnect, gpus)?;
    let has_routes = |medium: &Interconnect| medium.wiring != Wiring::Switched;
    let unswitched = has_routes(&node.interconnect) || node.host.as_ref().is_some_and(has_routes);
    if unswitched && (nodes * gpus).saturating_mul(gpus) > MOST_COUPLES {
        let allowed =
            format!("at most {MOST_COUPLES} couples of GPUs within nodes of {gpus} that no switch joins");
        return Err(fault("nodes", nodes.to_string(), &allowed));
    }
    if let Some(host) = &node.host {
        check_links("node.host", host, gpus)?;
        return check_joined("node.host", host, gpus);
    }
    check_joined("node.interconnect", &node.interconnect, gpus)
}

fn check_links(key: &str, interconnect: &Interconnect, gpus: usize) -> Result<(), Fault> {
    if interconnect.wiring != Wiring::Switched && gpus > MOST_UNSWITCHED {
        let allowed =
            format!("at most {MOST_UNSWITCHED} GPUs in a node unless `{key}.wiring` is \"switched\"");
        return Err(fault("node.gpus", gpus.to_string(), &allowed));
    }
    match &interconnect.wiring {
        Wiring::Switched | Wiring::Direct => {}
        Wiring::Pairs(pairs) => check_pairs(&format!("{key}.wiring.pairs.links"), pairs, gpus)?,
        Wiring::Bridges(bridges) => check_bridges(&format!("{key}.wiring.bridges"), bridges, gpus)?,
    }
    let used = interconnect.wiring.links(gpus);
    match &interconnect.links {
        Some(links) if links.value < used => {
            let allowed = format!("at least the {used} that the wiring uses");
            Err(fault(&format!("{key}.links"), links.value.to_string(), &allowed))
        }
        _ => Ok(()),
    }
}

fn check_pairs(key: &str, pairs: &Pairs, gpus: usize) -> Result<(), Fault> {
    for (row, [a, b, count]) in pairs.links.iter().enumerate() {
        let refuse =
            |allowed: &str| Err(fault(&format!("{key}.{row}"), format!("[{a}, {b}, {count}]"), allowed));
        if a.max(b) >= &gpus {
            return refuse(&format!("the node's GPUs are 0 to {}", gpus - 1));
        }
        if a == b {
            return refuse("a link joins two GPUs");
        }
        if *count == 0 {
            return refuse("at least 1 link; leave out pairs that have none");
        }
        if pairs.links[..row].iter().any(|[c, d, _]| (c, d) == (a, b) || (d, c) == (a, b)) {
            return refuse("this pair stands twice");
        }
    }
    Ok(())
}

fn check_bridges(key: &str, bridges: &Bridges, gpus: usize) -> Result<(), Fault> {
    let socket = bridges.gpus_per_socket.as_ref().map_or(gpus, |count| count.value);
    at_least_one(&format!("{key}.gpus_per_socket"), socket)?;
    if let Some(switch) = &bridges.gpus_per_switch {
        at_least_one(&format!("{key}.gpus_per_switch"), switch.value)?;
        if !socket.is_multiple_of(switch.value) {
            let allowed = format!("a divisor of the {socket} GPUs below a socket");
            return Err(fault(&format!("{key}.gpus_per_switch"), switch.value.to_string(), &allowed));
        }
    }
    let between = format!("{key}.between_sockets");
    match &bridges.between_sockets {
        Some(bandwidth) => at_least(&between, &bandwidth.value, SLOWEST_LINK),
        None if socket < gpus => {
            Err(fault(&between, "missing".into(), "several sockets need a bandwidth between them"))
        }
        None => Ok(()),
    }
}

fn check_joined(key: &str, interconnect: &Interconnect, gpus: usize) -> Result<(), Fault> {
    let Wiring::Pairs(pairs) = &interconnect.wiring else { return Ok(()) };
    match unjoined(gpus, pairs.links.iter().map(|[a, b, _]| (*a, *b))) {
        None => Ok(()),
        Some(gpu) => {
            let allowed =
                "every GPU must be joined to every other; a `node.host` (PCIe) can join what links do not";
            let value = format!("not joining GPU {gpu} to GPU 0");
            Err(fault(&format!("{key}.wiring.pairs.links"), value, allowed))
        }
    }
}
