//! Arguments become collectives over groups by size, with what was measured of them.

use super::{cluster, refuse, text};
use crate::arguments::{GroupArguments, NetworkArguments, Sizes};
use crate::error::CliError;
use crate::render::words::count;
use serde::Serialize;
use std::collections::BTreeMap;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_traces::nccl_tests::{self, LoggedGroup, LoggedSweep};
use trainwright_traces::published;

/// What `network` is asked.
#[derive(Debug)]
pub struct Question {
    /// The hardware.
    pub cluster: Cluster,
    /// Collectives over groups: one, or as many as the log has.
    pub sweeps: Vec<Sweep>,
}

/// A collective over a group, by size.
#[derive(Debug)]
pub struct Sweep {
    /// Which collective.
    pub collective: CollectiveKind,
    /// Global ranks of the group.
    pub ranks: Vec<usize>,
    /// How the group lies on its nodes; none if it has more ranks on one than on another.
    pub shape: Option<LoggedGroup>,
    /// The sizes, ascending.
    pub sizes: Vec<Bytes>,
    /// What was measured of this collective over such a group.
    pub measured: Vec<Measured>,
}

/// A measured sweep.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// What it is called.
    pub name: String,
    /// Where it is from.
    pub source: String,
    /// The software, as far as known.
    pub software: Option<String>,
    /// What the log calls the GPUs.
    pub gpu: Option<String>,
    /// The day, as far as known.
    pub date: Option<String>,
    /// Whether the group left GPUs of its nodes idle that the forecast has at work.
    pub alone: bool,
    /// Sizes, ascending, with their times.
    pub times: Vec<(Bytes, Seconds)>,
}

impl Measured {
    /// The time of exactly this size.
    pub fn time(&self, bytes: Bytes) -> Option<Seconds> {
        self.times.iter().find(|(size, _)| *size == bytes).map(|(_, time)| *time)
    }
}

/// What `network` is asked.
///
/// # Errors
/// The first argument that makes no sense by itself or beside the others, or a log that cannot be used.
pub fn question(arguments: &NetworkArguments) -> Result<Question, CliError> {
    let mut cluster = cluster(&arguments.cluster, arguments.profile.as_deref())?;
    cluster.nccl = arguments.forced.nccl.unwrap_or(cluster.nccl);
    let most = cluster.nccl.constants().channels.most.value;
    if let Some(channels) = arguments.forced.channels.filter(|channels| *channels > most) {
        return Err(refuse("--channels", channels, format!("NCCL {} has at most {most}", cluster.nccl)));
    }
    if arguments.collective == Some(CollectiveKind::Barrier) {
        let allowed = "it moves no data, so that there are no sizes to go through".into();
        return Err(refuse("--collective", CollectiveKind::Barrier, allowed));
    }
    let sweeps = match &arguments.log {
        Some(path) => of_log(arguments, &cluster, path)?,
        None => vec![of_arguments(arguments, &cluster)?],
    };
    Ok(Question { cluster, sweeps })
}

fn of_arguments(arguments: &NetworkArguments, cluster: &Cluster) -> Result<Sweep, CliError> {
    let Some(collective) = arguments.collective else {
        let allowed = "without `--log` it has to be named, for example all_reduce".into();
        return Err(refuse("--collective", "missing", allowed));
    };
    let ranks = group(&arguments.group, cluster)?;
    let shape = shape(&ranks, cluster.node.gpus.value);
    let default = Sizes::Range(Bytes::new(8.0), 8.0 * Bytes::GIB);
    let sizes = arguments.bytes.as_ref().unwrap_or(&default).all(arguments.factor);
    let measured = shape.map_or_else(Vec::new, |shape| {
        published_sweeps(collective, shape, cluster, arguments.forced.algorithm)
    });
    Ok(Sweep { collective, ranks, shape, sizes, measured })
}

/// The sweeps of a log, those of the same collective and group joined.
fn of_log(arguments: &NetworkArguments, cluster: &Cluster, path: &str) -> Result<Vec<Sweep>, CliError> {
    let origin = if path == "-" { "standard input" } else { path };
    let logged = nccl_tests::read(&text(Some("--log"), path)?, origin)?;
    let asked = match arguments.group.is_empty() {
        true => None,
        false => shape(&group(&arguments.group, cluster)?, cluster.node.gpus.value),
    };
    let mut joined: BTreeMap<(CollectiveKind, [usize; 3]), Vec<&LoggedSweep>> = BTreeMap::new();
    for sweep in &logged {
        let at = format!("{origin}:{}", sweep.line);
        let Some(collective) = sweep.collective.or(arguments.collective) else {
            let allowed = format!("{at} does not say which collective it is of: name it");
            return Err(refuse("--collective", "missing", allowed));
        };
        let Some(found) = sweep.group.or(asked) else {
            let allowed =
                format!("{at} does not list all ranks: give the group by `--nodes` and `--ranks-per-node`");
            return Err(refuse("--log", origin, allowed));
        };
        let wanted = arguments.collective.is_none_or(|asked| asked == collective)
            && asked.is_none_or(|asked| {
                (asked.nodes, asked.ranks_per_node) == (found.nodes, found.ranks_per_node)
            });
        if wanted {
            let key = (collective, [found.nodes, found.ranks_per_node, found.groups]);
            joined.entry(key).or_default().push(sweep);
        }
    }
    if joined.is_empty() {
        let has: Vec<String> = logged.iter().map(said).collect();
        let allowed = format!("it has {}, which is not what the other arguments ask for", has.join(", "));
        return Err(refuse("--log", origin, allowed));
    }
    let joined = joined.into_iter().map(|((collective, [nodes, ranks_per_node, groups]), sweeps)| {
        let shape = LoggedGroup { nodes, ranks_per_node, groups };
        let ranks = ranks_of(shape, cluster, |allowed| refuse("--log", origin, allowed))?;
        let siblings = nodes > 1 && ranks_per_node < cluster.node.gpus.value;
        let alone = siblings && ranks_per_node * groups < cluster.node.gpus.value;
        let measured = measured(origin, &sweeps, alone);
        let own = || measured.times.iter().map(|(bytes, _)| *bytes).collect();
        let sizes = arguments.bytes.as_ref().map_or_else(own, |sizes| sizes.all(arguments.factor));
        Ok(Sweep { collective, ranks, shape: Some(shape), sizes, measured: vec![measured] })
    });
    joined.collect()
}

/// A logged sweep in words, as far as it is known.
fn said(sweep: &LoggedSweep) -> String {
    let collective = sweep.collective.map_or("some collective", CollectiveKind::name);
    let group =
        sweep.group.map_or("some".into(), |group| format!("{} x {}", group.nodes, group.ranks_per_node));
    format!("{collective} over {group} ranks")
}

fn measured(origin: &str, sweeps: &[&LoggedSweep], alone: bool) -> Measured {
    let rows = sweeps.iter().flat_map(|sweep| &sweep.rows).map(|row| (row.bytes, row.time));
    let first = sweeps[0];
    Measured {
        name: origin.into(),
        source: origin.into(),
        software: first.software.clone(),
        gpu: first.gpu.clone(),
        date: first.date.clone(),
        alone,
        times: medians(rows.collect()),
    }
}

/// The median time of each size, ascending.
fn medians(mut times: Vec<(Bytes, Seconds)>) -> Vec<(Bytes, Seconds)> {
    times.sort_by(|a, b| {
        (a.0.get(), a.1.get()).partial_cmp(&(b.0.get(), b.1.get())).expect("times are numbers")
    });
    times.chunk_by(|a, b| a.0 == b.0).map(|of_size| of_size[of_size.len() / 2]).collect()
}

/// What was published of such a group on such nodes. Where a group of several nodes has only some GPUs of each, its
/// siblings must have worked at the same time, as in the forecast.
fn published_sweeps(
    collective: CollectiveKind,
    shape: LoggedGroup,
    cluster: &Cluster,
    algorithm: Option<&str>,
) -> Vec<Measured> {
    let LoggedGroup { nodes, ranks_per_node, .. } = shape;
    let rows = published::collectives().iter().filter(|row| {
        (row.cluster == cluster.node.name || row.cluster == cluster.name)
            && row.collective == collective
            && (row.nodes, row.ranks) == (nodes, nodes * ranks_per_node)
            && (nodes == 1 || ranks_per_node * row.groups == cluster.node.gpus.value)
            && (row.forced.is_none() || row.forced.as_deref() == algorithm)
    });
    let mut sweeps: BTreeMap<&str, Vec<&published::PublishedTime>> = BTreeMap::new();
    for row in rows {
        sweeps.entry(&row.sweep).or_default().push(row);
    }
    let sweeps = sweeps.into_iter().map(|(name, rows)| Measured {
        name: name.into(),
        source: rows[0].source.clone(),
        software: Some(rows[0].software.clone()),
        gpu: None,
        date: None,
        alone: false,
        times: medians(rows.iter().map(|row| (row.bytes, row.time)).collect()),
    });
    sweeps.collect()
}

/// The ranks that the arguments name.
fn group(arguments: &GroupArguments, cluster: &Cluster) -> Result<Vec<usize>, CliError> {
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
        0 | 1 => Err(refuse("--ranks", text(), "a group of one rank has nothing to communicate".into())),
        _ => Ok(sorted),
    }
}

/// The first ranks of the first nodes.
fn ranks_of(
    shape: LoggedGroup,
    cluster: &Cluster,
    refuse: impl Fn(String) -> CliError,
) -> Result<Vec<usize>, CliError> {
    let LoggedGroup { nodes, ranks_per_node, .. } = shape;
    let each = cluster.node.gpus.value;
    if nodes > cluster.nodes || ranks_per_node > each {
        return Err(refuse(format!(
            "it is of {nodes} nodes with {ranks_per_node} ranks each, {} has {} with {each}",
            cluster.name, cluster.nodes
        )));
    }
    if nodes * ranks_per_node == 1 {
        return Err(refuse("a group of one rank has nothing to communicate".into()));
    }
    Ok((0..nodes).flat_map(|node| (0..ranks_per_node).map(move |rank| node * each + rank)).collect())
}

/// How ranks, ascending, lie on nodes of so many GPUs; none if unevenly.
fn shape(ranks: &[usize], gpus: usize) -> Option<LoggedGroup> {
    let mut sizes = ranks.chunk_by(|a, b| a / gpus == b / gpus).map(<[usize]>::len);
    let ranks_per_node = sizes.next()?;
    let nodes = ranks.len() / ranks_per_node;
    let even = sizes.all(|size| size == ranks_per_node);
    even.then_some(LoggedGroup { nodes, ranks_per_node, groups: 1 })
}
