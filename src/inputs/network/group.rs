//! Which GPUs a group is of.

use crate::arguments::GroupArguments;
use crate::error::{CliError, refuse};
use crate::render::words::count;
use trainwright_formats::nccl_tests::LoggedGroup;
use trainwright_spec::cluster::Cluster;

/// The ranks that the arguments name.
pub(super) fn group(arguments: &GroupArguments, cluster: &Cluster) -> Result<Vec<usize>, CliError> {
    let (all, each) = (cluster.gpus(), cluster.node.gpus.value);
    let too_few = |allowed: &str| format!("{allowed}: a group of one rank has nothing to communicate");
    if let Some(ranks) = &arguments.ranks {
        return listed(ranks, cluster);
    }
    if let Some(ranks_per_node) = arguments.ranks_per_node.filter(|ranks| *ranks > each) {
        let allowed = format!("a node of {} has {}", cluster.name, count(each, "GPU"));
        return Err(refuse("--ranks-per-node", ranks_per_node, allowed));
    }
    if let Some(gpus) = arguments.gpus.filter(|gpus| *gpus > all) {
        return Err(refuse("--gpus", gpus, format!("{} has {}", cluster.name, count(all, "GPU"))));
    }
    if let Some(nodes) = arguments.nodes.filter(|nodes| *nodes > cluster.nodes) {
        return Err(refuse(
            "--nodes",
            nodes,
            format!("{} has {}", cluster.name, count(cluster.nodes, "node")),
        ));
    }
    let divide = |gpus: usize, name: &str, parts: usize, most: usize| match gpus.is_multiple_of(parts)
        && gpus / parts <= most
    {
        true => Ok(gpus / parts),
        false => Err(refuse(
            "--gpus",
            gpus,
            format!("with `{name}` {parts} it must be a multiple of that, at most {}", parts * most),
        )),
    };
    let (nodes, ranks_per_node) = match (arguments.gpus, arguments.nodes, arguments.ranks_per_node) {
        (Some(1), ..) => return Err(refuse("--gpus", 1, too_few("at least 2"))),
        (Some(gpus), None, None) => return Ok((0..gpus).collect()),
        (Some(gpus), Some(nodes), Some(ranks)) if gpus == nodes * ranks => (nodes, ranks),
        (Some(gpus), Some(nodes), Some(ranks)) => {
            let allowed = format!("`--nodes` {nodes} times `--ranks-per-node` {ranks} are {}", nodes * ranks);
            return Err(refuse("--gpus", gpus, allowed));
        }
        (Some(gpus), Some(nodes), None) => (nodes, divide(gpus, "--nodes", nodes, each)?),
        (Some(gpus), None, Some(ranks)) => (divide(gpus, "--ranks-per-node", ranks, cluster.nodes)?, ranks),
        (None, nodes, ranks) => (nodes.unwrap_or(cluster.nodes), ranks.unwrap_or(each)),
    };
    let shape = LoggedGroup { nodes, ranks_per_node, groups: 1 };
    let named = if arguments.is_empty() {
        ("--cluster", &cluster.name)
    } else {
        ("--ranks-per-node", &ranks_per_node.to_string())
    };
    ranks_of(shape, cluster, |allowed| refuse(named.0, named.1, allowed))
}

fn listed(ranks: &[usize], cluster: &Cluster) -> Result<Vec<usize>, CliError> {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let text = || ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(refuse("--ranks", text(), format!("rank {} is there twice", pair[0])));
    }
    if let Some(rank) = sorted.last().filter(|rank| **rank >= cluster.gpus()) {
        let allowed = format!("{} has ranks 0 to {}, not {rank}", cluster.name, cluster.gpus() - 1);
        return Err(refuse("--ranks", text(), allowed));
    }
    match sorted.len() {
        0 | 1 => Err(refuse("--ranks", text(), "a group of one rank has nothing to communicate")),
        _ => Ok(sorted),
    }
}

/// The first ranks of the first nodes.
pub(super) fn ranks_of(
    shape: LoggedGroup,
    cluster: &Cluster,
    refuse: impl Fn(String) -> CliError,
) -> Result<Vec<usize>, CliError> {
    let LoggedGroup { nodes, ranks_per_node, .. } = shape;
    let each = cluster.node.gpus.value;
    if nodes > cluster.nodes || ranks_per_node > each {
        return Err(refuse(format!(
            "it is of {} with {} each, {} has {} with {each}",
            count(nodes, "node"),
            count(ranks_per_node, "rank"),
            cluster.name,
            cluster.nodes
        )));
    }
    if nodes * ranks_per_node == 1 {
        return Err(refuse("a group of one rank has nothing to communicate".into()));
    }
    Ok((0..nodes).flat_map(|node| (0..ranks_per_node).map(move |rank| node * each + rank)).collect())
}

/// How ascending ranks lie on nodes with this number of GPUs; `None` if unevenly.
pub(super) fn shape(ranks: &[usize], gpus: usize) -> Option<LoggedGroup> {
    let mut sizes = ranks.chunk_by(|a, b| a / gpus == b / gpus).map(<[usize]>::len);
    let ranks_per_node = sizes.next()?;
    let nodes = ranks.len() / ranks_per_node;
    let even = sizes.all(|size| size == ranks_per_node);
    even.then_some(LoggedGroup { nodes, ranks_per_node, groups: 1 })
}
