//! `network`: a collective over a group by size, forecast and measured.

mod by_steps;

use crate::arguments::NetworkArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::inputs::network::{self as inputs, Measured, Question, Sweep};
use crate::output;
use crate::render::{json, network as page};
use page::{Comparison, How, Row, SweepTable};
use trainwright_evidence::published::MeasuredCall;
use trainwright_formats::nccl_tests;
use trainwright_pictures::plot::{Curve, Mark, SweepPlot, png, svg};
use trainwright_sim::costs::{measured_sweep, measured_time};
use trainwright_sim::network::topology::Topology;
use trainwright_sim::network::{ALGORITHMS, Forced, Placement, Protocol};
use trainwright_spec::cluster::{Cluster, MeasuredSweep, MeasuredTime, NetworkProfile, ProfileKind};
use trainwright_spec::nccl::Nccl;
use trainwright_spec::units::{Bytes, Seconds};

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read or written.
pub fn run(arguments: &NetworkArguments) -> Result<Outcome, CliError> {
    let files = [
        ("--write-profile", &arguments.write_profile),
        ("--svg", &arguments.svg),
        ("--png", &arguments.png),
        ("--write-log", &arguments.write_log),
    ];
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let question = inputs::question(arguments)?;
    let topology = question.by_steps.as_ref().map(|_| Topology::new(&question.cluster));
    let tables =
        question.sweeps.iter().map(|sweep| match question.by_steps.as_ref().zip(topology.as_ref()) {
            None => table(&question.cluster, sweep, arguments),
            Some((by_steps, topology)) => {
                let cluster = &question.cluster;
                let (rows, by_steps) = by_steps::rows(by_steps, sweep, cluster, topology)?;
                Ok(SweepTable { cluster, sweep, rows, by_steps: Some(by_steps) })
            }
        });
    let tables = tables.collect::<Result<Vec<SweepTable>, CliError>>()?;
    let profile = arguments.write_profile.as_ref().map(|_| profile(&question, arguments)).transpose()?;
    if let [_, _, ..] = tables.as_slice()
        && let Some((argument, Some(path))) = files[1..].iter().find(|(_, path)| path.is_some())
    {
        let groups: Vec<String> = tables.iter().map(SweepTable::title).collect();
        let allowed = format!("the log has several sweeps ({}): choose one", groups.join("; "));
        return Err(refuse(argument, path, allowed));
    }
    // The files first, so that a reader who closes standard output early does not lose them.
    let written = write_files(arguments, &tables, profile.as_ref());
    if arguments.json {
        output::print(&json::network(&tables))?;
    } else if !alone {
        output::print(&page::page(&tables))?;
    }
    written?;
    match arguments.write_profile.as_deref() {
        Some(path) if !alone && !arguments.json => output::print(&page::next_step(path))?,
        _ => {}
    }
    Ok(Outcome::Done)
}

/// The forecast of a sweep and its measurements.
fn table<'a>(
    cluster: &'a Cluster,
    sweep: &'a Sweep,
    arguments: &NetworkArguments,
) -> Result<SweepTable<'a>, CliError> {
    let placement = Placement::new(&sweep.ranks, cluster);
    let forced = arguments.forced.choice();
    let profile = measured_sweep(sweep.collective, &sweep.ranks, cluster);
    let rows = sweep.sizes.iter().map(|&bytes| {
        if let (true, Some(profile)) = (forced == Forced::default(), profile) {
            let forecast = |bytes| placement.collective_time(sweep.collective, bytes);
            let time = measured_time(profile, bytes, forecast);
            let compared = compared(sweep, &placement, bytes, |_| Some(time));
            return Ok(Row { bytes, time, how: How::Profile, compared });
        }
        let choice = placement.choose(sweep.collective, bytes, &forced);
        let choice = choice.ok_or_else(|| cannot(&forced, sweep, cluster, &placement))?;
        let compared = compared(sweep, &placement, bytes, |placement| {
            placement.choose(sweep.collective, bytes, &forced).map(|choice| choice.time)
        });
        Ok(Row { bytes, time: choice.time, how: How::Nccl(choice), compared })
    });
    let rows = rows.collect::<Result<_, CliError>>()?;
    Ok(SweepTable { cluster, sweep, rows, by_steps: None })
}

/// The median measurement of a size, and its forecast: with the stated version of NCCL, plus the overhead of the measuring
/// method. `None` if nothing was measured, or if that NCCL cannot do the forced choice.
fn compared(
    sweep: &Sweep,
    placement: &Placement,
    bytes: Bytes,
    forecast: impl Fn(&Placement) -> Option<Seconds>,
) -> Option<Comparison> {
    let (time, measured) = sweep.median(bytes)?;
    let mut placement = placement.clone();
    placement.nccl = measured.nccl.map_or(placement.nccl, Nccl::constants);
    let Placement { ranks, start, memory, .. } = placement;
    let call = MeasuredCall { collective: sweep.collective, bytes, ranks, start, memory };
    Some(Comparison { measured: time, forecast: forecast(&placement)? + measured.method.adds(&call) })
}

/// The forced choice is impossible: lists the possible ones.
fn cannot(forced: &Forced, sweep: &Sweep, cluster: &Cluster, placement: &Placement) -> CliError {
    let does = |algorithm, protocol: &Protocol| {
        let only = Forced { algorithm: Some(algorithm), protocol: Some(*protocol), channels: None };
        placement.choose(sweep.collective, sweep.sizes[0], &only).is_some()
    };
    let able = ALGORITHMS.iter().filter_map(|algorithm| {
        let protocols = Protocol::ALL.iter().filter(|protocol| does(algorithm.name(), protocol));
        let names: Vec<&str> = protocols.map(|protocol| protocol.name()).collect();
        (!names.is_empty()).then(|| format!("{} ({})", algorithm.name(), names.join(", ")))
    });
    let (group, able) = (page::group(sweep, placement.nodes), able.collect::<Vec<_>>().join(", "));
    let by_steps = by_steps::able(sweep, cluster, &Topology::new(cluster)).join(", ");
    let allowed = format!(
        "{} over {group} can be done by {able}, and with `--by-steps` by {by_steps}",
        sweep.collective
    );
    let allowed = match forced.algorithm.and_then(|algorithm| newer(algorithm, cluster)) {
        Some(newer) => format!("{newer}; {allowed}"),
        None => allowed,
    };
    let (argument, value) = match (forced.algorithm, forced.protocol) {
        (Some(algorithm), Some(protocol)) => {
            ("--algorithm` with `--protocol", format!("{algorithm} with {protocol}"))
        }
        (Some(algorithm), None) => ("--algorithm", algorithm.into()),
        (None, protocol) => {
            ("--protocol", protocol.map_or_else(String::new, |protocol| protocol.to_string()))
        }
    };
    refuse(argument, value, allowed)
}

/// The first version of NCCL with the algorithm. `None` if the cluster's version has it.
fn newer(algorithm: &str, cluster: &Cluster) -> Option<String> {
    let algorithm = ALGORITHMS.iter().find(|known| known.name() == algorithm)?;
    if algorithm.is_in(cluster.nccl.constants()) {
        return None;
    }
    let first = Nccl::all().find(|version| algorithm.is_in(version.constants()))?;
    let older = cluster.nccl;
    Some(format!("NCCL {older} does not have it, {first} is the first of the catalog's versions that does"))
}

fn write_files(
    arguments: &NetworkArguments,
    tables: &[SweepTable],
    profile: Option<&NetworkProfile>,
) -> Result<(), CliError> {
    if let (Some(path), Some(profile)) = (&arguments.write_profile, profile) {
        output::save("--write-profile", path, profile.to_toml())?;
    }
    let [table] = tables else { return Ok(()) };
    output::save_given("--svg", &arguments.svg, || svg(&plot(table)))?;
    output::save_given("--png", &arguments.png, || png(&plot(table)))?;
    output::save_given("--write-log", &arguments.write_log, || log(table))
}

fn plot(table: &SweepTable) -> SweepPlot {
    let forecast = Curve {
        name: "forecast".into(),
        mark: Mark::Line,
        points: table.rows.iter().map(|row| (row.bytes, row.time)).collect(),
    };
    let measured = table.sweep.measured.iter().map(|measured: &Measured| Curve {
        name: format!("measured: {}", measured.name),
        mark: Mark::Points,
        points: measured.times.clone(),
    });
    SweepPlot {
        title: table.title(),
        bus_factor: table.bus_factor(),
        curves: std::iter::once(forecast).chain(measured).collect(),
    }
}

fn log(table: &SweepTable) -> String {
    let gpus = table.cluster.node.gpus.value;
    let ranks: Vec<_> = table.sweep.ranks.iter().map(|rank| (rank / gpus, rank % gpus)).collect();
    let times: Vec<_> = table.rows.iter().map(|row| (row.bytes, row.time)).collect();
    nccl_tests::write(&nccl_tests::Forecast {
        collective: table.sweep.collective,
        ranks: &ranks,
        gpu: &table.cluster.node.gpu.name,
        times: &times,
    })
}

/// The log's measurements as a profile, for `--profile`.
fn profile(question: &Question, arguments: &NetworkArguments) -> Result<NetworkProfile, CliError> {
    let first = question.sweeps.iter().find_map(|sweep| sweep.measured.first());
    let sweeps = question.sweeps.iter().filter_map(|sweep| {
        let (shape, measured) = (sweep.shape?, sweep.measured.first()?);
        Some(MeasuredSweep {
            collective: sweep.collective,
            nodes: shape.nodes,
            ranks_per_node: shape.ranks_per_node,
            groups: shape.groups,
            rows: measured.times.iter().map(|&(bytes, time)| MeasuredTime { bytes, time }).collect(),
        })
    });
    let profile = NetworkProfile {
        kind: ProfileKind::Network,
        cluster: question.cluster.name.clone(),
        gpus_per_node: question.cluster.node.gpus.value,
        gpu: first.and_then(|measured| measured.gpu.clone()),
        date: first.and_then(|measured| measured.date.clone()),
        versions: first.and_then(|measured| measured.software.clone()),
        source: first.map_or_else(String::new, |measured| measured.source.clone()),
        sweeps: sweeps.collect(),
    };
    // A written profile must be readable: a log may have times that no profile may have.
    let origin = arguments.log.as_deref().unwrap_or_default();
    match question.cluster.clone().with_profile(profile.clone(), origin) {
        Ok(_) => Ok(profile),
        Err(error) => Err(CliError::of_input(Some("--log"), error)),
    }
}
