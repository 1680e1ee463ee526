//! Arguments become collectives over groups by size, with what was measured of them.

mod by_steps;
mod group;

pub use by_steps::ByStepsQuestion;

use super::{cluster, text};
use crate::arguments::{ForcedArguments, NetworkArguments, Sizes};
use crate::error::{CliError, refuse};
use group::{group, ranks_of, shape};
use serde::Serialize;
use std::collections::BTreeMap;
use trainwright_evidence::published::{self, Method};
use trainwright_formats::nccl_tests::{self, LoggedGroup, LoggedSweep};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::nccl::Nccl;
use trainwright_spec::units::{Bytes, Seconds};

/// The question to `network`.
#[derive(Debug)]
pub struct Question {
    /// The hardware.
    pub cluster: Cluster,
    /// Collectives over groups: one, or all that the log has.
    pub sweeps: Vec<Sweep>,
    /// The algorithm whose steps are timed; `None` for NCCL's choice.
    pub by_steps: Option<ByStepsQuestion>,
}

/// A collective over a group, by size.
#[derive(Debug)]
pub struct Sweep {
    /// Which collective.
    pub collective: CollectiveKind,
    /// Global ranks of the group.
    pub ranks: Vec<usize>,
    /// How the group lies on its nodes; `None` if nodes have different numbers of its ranks.
    pub shape: Option<LoggedGroup>,
    /// The sizes, ascending.
    pub sizes: Vec<Bytes>,
    /// Measurements of this collective over a group of this shape.
    pub measured: Vec<Measured>,
}

/// A measured sweep.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// Where it is from.
    pub source: String,
    /// The software, as far as known.
    pub software: Option<String>,
    /// The log's name of the GPUs.
    pub gpu: Option<String>,
    /// The day, as far as known.
    pub date: Option<String>,
    /// The version of NCCL that its forecast is made with, where that is not the cluster's.
    pub nccl: Option<Nccl>,
    /// The overhead of the measuring method, as far as known.
    #[serde(flatten)]
    pub method: Method,
    /// Whether the group left GPUs of its nodes idle that the forecast has at work.
    pub alone: bool,
    /// Sizes, ascending, with their times.
    pub times: Vec<(Bytes, Seconds)>,
}

impl Sweep {
    /// The median measurement of exactly this size, and its sweep; the lower one of two.
    pub fn median(&self, bytes: Bytes) -> Option<(Seconds, &Measured)> {
        let times = self.measured.iter().filter_map(|measured| Some((measured.time(bytes)?, measured)));
        let mut times: Vec<(Seconds, &Measured)> = times.collect();
        times.sort_by(|(a, _), (b, _)| a.get().total_cmp(&b.get()));
        times.get(times.len().saturating_sub(1) / 2).copied()
    }
}

impl Measured {
    /// The time of exactly this size.
    pub fn time(&self, bytes: Bytes) -> Option<Seconds> {
        self.times.iter().find(|(size, _)| *size == bytes).map(|(_, time)| *time)
    }
}

/// The question to `network`.
///
/// # Errors
/// The first argument that is invalid, alone or with the others, or a log that cannot be used.
pub fn question(arguments: &NetworkArguments) -> Result<Question, CliError> {
    let mut cluster = cluster(&arguments.cluster, arguments.profile.as_slice())?;
    cluster.nccl = arguments.forced.nccl.unwrap_or(cluster.nccl);
    let most = cluster.nccl.constants().channels.most.value;
    if let Some(channels) = arguments.forced.channels.filter(|channels| *channels > most) {
        return Err(refuse("--channels", channels, format!("NCCL {} has at most {most}", cluster.nccl)));
    }
    if arguments.collective == Some(CollectiveKind::Barrier) {
        let allowed = "it moves no data, so that there are no sizes to go through";
        return Err(refuse("--collective", CollectiveKind::Barrier, allowed));
    }
    let by_steps = by_steps::question(&arguments.forced)?;
    let sweeps = match &arguments.log {
        Some(path) => of_log(arguments, &cluster, path)?,
        None => vec![of_arguments(arguments, &cluster)?],
    };
    Ok(Question { cluster, sweeps, by_steps })
}

fn of_arguments(arguments: &NetworkArguments, cluster: &Cluster) -> Result<Sweep, CliError> {
    let Some(collective) = arguments.collective else {
        let allowed = "without `--log` it has to be named, for example all_reduce";
        return Err(refuse("--collective", "missing", allowed));
    };
    let ranks = group(&arguments.group, cluster)?;
    let shape = shape(&ranks, cluster.node.gpus.value);
    let default = Sizes::Range(Bytes::new(8.0), 8.0 * Bytes::GIB);
    let sizes = arguments.bytes.as_ref().unwrap_or(&default).all(arguments.factor);
    let measured =
        shape.map_or_else(Vec::new, |shape| published_sweeps(collective, shape, cluster, &arguments.forced));
    Ok(Sweep { collective, ranks, shape, sizes, measured })
}

/// The sweeps of a log, those of the same collective and group joined.
fn of_log(arguments: &NetworkArguments, cluster: &Cluster, path: &str) -> Result<Vec<Sweep>, CliError> {
    let origin = if path == "-" { "standard input" } else { path };
    let logged = nccl_tests::read(&text(Some("--log"), path)?, origin)?;
    let given = match arguments.group.is_empty() {
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
        let Some(found) = sweep.group.or(given) else {
            let allowed =
                format!("{at} does not list all ranks: give the group by `--nodes` and `--ranks-per-node`");
            return Err(refuse("--log", origin, allowed));
        };
        let wanted = arguments.collective.is_none_or(|given| given == collective)
            && given.is_none_or(|given| {
                (given.nodes, given.ranks_per_node) == (found.nodes, found.ranks_per_node)
            });
        if wanted {
            let key = (collective, [found.nodes, found.ranks_per_node, found.groups]);
            joined.entry(key).or_default().push(sweep);
        }
    }
    if joined.is_empty() {
        let has: Vec<String> = logged.iter().map(in_words).collect();
        let allowed = format!("it has {}, which is not what the other arguments ask for", has.join(", "));
        return Err(refuse("--log", origin, allowed));
    }
    let joined = joined.into_iter().map(|((collective, [nodes, ranks_per_node, groups]), sweeps)| {
        let shape = LoggedGroup { nodes, ranks_per_node, groups };
        let ranks = ranks_of(shape, cluster, |allowed| refuse("--log", origin, allowed))?;
        let siblings = nodes > 1 && ranks_per_node < cluster.node.gpus.value;
        let alone = siblings && ranks_per_node * groups < cluster.node.gpus.value;
        let measured = measured(origin, &sweeps, alone);
        let measured_sizes = || measured.times.iter().map(|(bytes, _)| *bytes).collect();
        let sizes = arguments.bytes.as_ref().map_or_else(measured_sizes, |sizes| sizes.all(arguments.factor));
        Ok(Sweep { collective, ranks, shape: Some(shape), sizes, measured: vec![measured] })
    });
    joined.collect()
}

/// A logged sweep in words, as far as known.
fn in_words(sweep: &LoggedSweep) -> String {
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
        nccl: None,
        method: Method::default(),
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

/// Published measurements of a group of this shape on these nodes. Where a group of several nodes has only some GPUs of each, its
/// siblings must have worked at the same time, as in the forecast.
fn published_sweeps(
    collective: CollectiveKind,
    shape: LoggedGroup,
    cluster: &Cluster,
    forced: &ForcedArguments,
) -> Vec<Measured> {
    let LoggedGroup { nodes, ranks_per_node, .. } = shape;
    let rows = published::collectives().filter(|row| {
        (row.cluster == cluster.node.name || row.cluster == cluster.name)
            && row.collective == collective
            && (row.nodes, row.ranks) == (nodes, nodes * ranks_per_node)
            && (nodes == 1 || ranks_per_node * row.groups == cluster.node.gpus.value)
            && (row.forced.is_none() || row.forced.as_deref() == forced.algorithm)
    });
    let mut sweeps: BTreeMap<[&str; 2], Vec<&published::PublishedTime>> = BTreeMap::new();
    for row in rows {
        sweeps.entry([&row.sweep, &row.software]).or_default().push(row);
    }
    let sweeps = sweeps.into_iter().map(|([name, software], rows)| Measured {
        name: name.into(),
        source: rows[0].source.clone(),
        software: Some(software.into()),
        gpu: None,
        date: None,
        nccl: rows[0].nccl.filter(|nccl| forced.nccl.is_none() && *nccl != cluster.nccl),
        method: rows[0].method.cloned().unwrap_or_default(),
        alone: false,
        times: medians(rows.iter().map(|row| (row.bytes, row.time)).collect()),
    });
    sweeps.collect()
}
