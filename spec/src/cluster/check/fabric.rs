//! Checks a fabric: groups that fill each other, every node joined to every other.

use super::{Fault, MOST_GPUS, SLOWEST_LINK, at_least, at_least_one, fault, short, unjoined};
use crate::cluster::{Cable, Cluster, Dragonfly, End, FatTree, RailOptimised, Routing, Shape, Torus};
use crate::sourced::Sourced;
use std::collections::BTreeMap;

pub(super) fn check(cluster: &Cluster) -> Result<(), Fault> {
    if let Some(latency) = &cluster.fabric.hop_latency {
        short("fabric.hop_latency", latency.value)?;
    }
    match &cluster.fabric.shape {
        Shape::FatTree(tree) => check_tree(tree, cluster.nodes),
        Shape::RailOptimised(rails) => check_rails(rails),
        Shape::Dragonfly(dragonfly) => check_dragonfly(dragonfly, cluster.nodes),
        Shape::Torus(torus) => check_torus(torus, cluster),
        Shape::Links(cables) => check_cables(cables, cluster),
    }
}

/// A size of a group, up to that of the largest cluster: beyond it is a typing error.
fn check_size(key: &str, size: &Sourced<usize>) -> Result<(), Fault> {
    at_least_one(key, size.value)?;
    match size.value <= MOST_GPUS {
        true => Ok(()),
        false => Err(fault(key, size.value.to_string(), &format!("at most {MOST_GPUS}"))),
    }
}

fn check_oversubscription(key: &str, ratio: &Sourced<f64>) -> Result<(), Fault> {
    if (1.0..=1000.0).contains(&ratio.value) {
        return Ok(());
    }
    Err(fault(key, ratio.value.to_string(), "from 1 (non-blocking) to 1000"))
}

fn check_tree(tree: &FatTree, nodes: usize) -> Result<(), Fault> {
    if tree.levels.is_empty() {
        return Err(fault(
            "fabric.fat_tree.levels",
            "empty".into(),
            "at least one level of groups below the core",
        ));
    }
    for (index, level) in tree.levels.iter().enumerate() {
        let key = |name: &str| format!("fabric.fat_tree.levels.{index}.{name}");
        check_size(&key("nodes"), &level.nodes)?;
        check_oversubscription(&key("oversubscription"), &level.oversubscription)?;
        if let Some(uplinks) = &level.uplinks {
            let groups = nodes.div_ceil(level.nodes.value);
            check_links(&key("uplinks"), uplinks, |uplinks| uplinks.saturating_mul(groups))?;
        }
        let Some(below) = index.checked_sub(1).map(|below| &tree.levels[below]) else { continue };
        let (nodes, inner) = (level.nodes.value, below.nodes.value);
        if nodes <= inner || nodes % inner != 0 {
            let allowed = format!("a multiple of the {inner} nodes in a group of the level below");
            return Err(fault(&key("nodes"), nodes.to_string(), &allowed));
        }
        let (ratio, narrower) = (level.oversubscription.value, below.oversubscription.value);
        if ratio < narrower {
            let allowed =
                format!("at least the {narrower} of the level below: each counts NICs against uplinks");
            return Err(fault(&key("oversubscription"), ratio.to_string(), &allowed));
        }
    }
    Ok(())
}

/// A number on which depends how many links in both directions there are: no more than GPUs can be.
fn check_links(key: &str, number: &Sourced<usize>, links: impl Fn(usize) -> usize) -> Result<(), Fault> {
    at_least_one(key, number.value)?;
    match links(number.value) {
        links if links <= MOST_GPUS => Ok(()),
        links => {
            let allowed = format!("at most {MOST_GPUS} links between switches in all, here are {links}");
            Err(fault(key, number.value.to_string(), &allowed))
        }
    }
}

fn check_rails(rails: &RailOptimised) -> Result<(), Fault> {
    check_size("fabric.rail_optimised.pod_nodes", &rails.pod_nodes)?;
    check_oversubscription("fabric.rail_optimised.oversubscription", &rails.oversubscription)
}

fn check_dragonfly(dragonfly: &Dragonfly, nodes: usize) -> Result<(), Fault> {
    let key = |name: &str| format!("fabric.dragonfly.{name}");
    let (per_router, per_group) = (&dragonfly.nodes_per_router, &dragonfly.routers_per_group);
    check_size(&key("nodes_per_router"), per_router)?;
    check_size(&key("routers_per_group"), per_group)?;
    if dragonfly.routing == Routing::Minimal {
        let couples = |ends: usize| ends.saturating_mul(ends) / 2;
        let groups = |routers: usize| nodes.div_ceil(per_router.value * routers);
        check_links(&key("routers_per_group"), per_group, |routers| {
            couples(routers).saturating_mul(groups(routers)).saturating_add(couples(groups(routers)))
        })?;
    }
    check_oversubscription(&key("local_oversubscription"), &dragonfly.local_oversubscription)?;
    check_oversubscription(&key("global_oversubscription"), &dragonfly.global_oversubscription)
}

fn check_torus(torus: &Torus, cluster: &Cluster) -> Result<(), Fault> {
    let (dims, gpus) = (&torus.dims, cluster.node.gpus.value);
    let key = |name: &str| format!("fabric.torus.{name}");
    let product = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
    if dims.is_empty() || product != Some(cluster.gpus()) {
        let allowed = format!("their product must be the cluster's {} GPUs", cluster.gpus());
        return Err(fault(&key("dims"), format!("{dims:?}"), &allowed));
    }
    if let Some(wrap) = torus.wrap.as_ref().filter(|wrap| wrap.len() != dims.len()) {
        return Err(fault(&key("wrap"), format!("{wrap:?}"), "one of true and false for each dim"));
    }
    let block = torus.node_block(gpus);
    let fits = |block: &Vec<usize>| {
        block.len() == dims.len()
            && block.iter().zip(dims).all(|(part, dim)| *part > 0 && dim % part == 0)
            && block.iter().product::<usize>() == gpus
    };
    if !block.as_ref().is_some_and(fits) {
        let written = torus.node_dims.as_ref().map_or("missing".into(), |dims| format!("{dims:?}"));
        let allowed = format!("a block of the node's {gpus} GPUs whose sides divide `dims`");
        return Err(fault(&key("node_dims"), written, &allowed));
    }
    let used = 2 * dims.len();
    match &cluster.node.interconnect.links {
        Some(links) if links.value < used => {
            let allowed = format!("at least {used}: two in each dim of the torus");
            Err(fault("node.interconnect.links", links.value.to_string(), &allowed))
        }
        _ => Ok(()),
    }
}

fn check_cables(cables: &[Cable], cluster: &Cluster) -> Result<(), Fault> {
    let Some(nics) = &cluster.node.nics else { return Ok(()) };
    let ports = nics.ports(cluster.node.gpus.value);
    let total = cluster.nodes * ports;
    let mut switches: BTreeMap<&str, usize> = BTreeMap::new();
    let mut edges = Vec::new();
    for (row, cable) in cables.iter().enumerate() {
        let key = |name: &str| format!("fabric.links.{row}.{name}");
        at_least(&key("bandwidth"), &cable.bandwidth.value, SLOWEST_LINK)?;
        short(&key("latency"), cable.latency.value)?;
        let refuse = |allowed: &str| Err(fault(&key("between"), format!("{:?}", cable.between), allowed));
        if cable.between[0] == cable.between[1] {
            return refuse("a link joins two different ends");
        }
        let mut joined: [Vec<usize>; 2] = Default::default();
        for (end, vertices) in cable.ends().into_iter().zip(&mut joined) {
            match end {
                End::Node(node) | End::Nic { node, .. } if node >= cluster.nodes => {
                    return refuse(&format!("the nodes are node0 to node{}", cluster.nodes - 1));
                }
                End::Nic { nic, .. } if nic >= ports => {
                    return refuse(&format!("the NICs of a node are nic0 to nic{}", ports - 1));
                }
                End::Node(node) => vertices.extend(node * ports..(node + 1) * ports),
                End::Nic { node, nic } => vertices.push(node * ports + nic),
                End::Switch(name) => {
                    let next = total + switches.len();
                    vertices.push(*switches.entry(name).or_insert(next));
                }
            }
        }
        let [from, to] = joined;
        edges.extend(from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b))));
    }
    match unjoined(total + switches.len(), edges.into_iter()) {
        None => Ok(()),
        Some(port) if port < total => {
            let value = format!("not joining node{}.nic{} to node0.nic0", port / ports, port % ports);
            Err(fault("fabric.links", value, "every NIC must be joined to every other"))
        }
        Some(vertex) => {
            let name = switches.iter().find(|(_, index)| **index == vertex).map_or("", |(name, _)| name);
            Err(fault(
                "fabric.links",
                format!("not joining {name} to node0.nic0"),
                "a switch without nodes is of no use",
            ))
        }
    }
}
