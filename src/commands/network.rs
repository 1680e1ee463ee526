//! `network`: a collective over a group by size, forecast and measured.

use crate::arguments::NetworkArguments;
use crate::error::{CliError, Outcome};
use crate::inputs::network::{self as inputs, Measured, Question, Sweep};
use crate::output;
use crate::render::{json, network as page};
use page::{Row, Table};
use trainwright_sim::costs::{measured_sweep, measured_time};
use trainwright_sim::network::{ALGORITHMS, Algorithm, Placement};
use trainwright_spec::cluster::{Cluster, MeasuredSweep, MeasuredTime, NetworkProfile, ProfileKind};
use trainwright_spec::units::Seconds;
use trainwright_traces::nccl_tests::{self, LoggedGroup};
use trainwright_traces::plot::{Curve, Mark, SweepPlot, png, svg};

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
    let tables = question.sweeps.iter().map(|sweep| table(&question.cluster, sweep, arguments));
    let tables = tables.collect::<Result<Vec<Table>, CliError>>()?;
    let profile = arguments.write_profile.as_ref().map(|_| profile(&question, arguments)).transpose()?;
    if let [_, _, ..] = tables.as_slice()
        && let Some((argument, Some(path))) = files[1..].iter().find(|(_, path)| path.is_some())
    {
        let groups: Vec<String> = tables.iter().map(Table::title).collect();
        let allowed = format!("the log has several sweeps ({}): choose one", groups.join("; "));
        return Err(CliError::Argument { argument: (*argument).into(), value: path.clone(), allowed });
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
        Some(path) if !alone && !arguments.json => output::print(&page::next_step(path, &question.cluster))?,
        _ => {}
    }
    Ok(Outcome::Done)
}

/// The forecast of a sweep beside what was measured.
fn table<'a>(
    cluster: &'a Cluster,
    sweep: &'a Sweep,
    arguments: &NetworkArguments,
) -> Result<Table<'a>, CliError> {
    let placement = Placement::new(&sweep.ranks, cluster);
    let profile = measured_sweep(sweep.collective, &sweep.ranks, cluster);
    let rows = sweep.sizes.iter().map(|&bytes| {
        let measured = median(sweep.measured.iter().filter_map(|measured| measured.time(bytes)).collect());
        let (algorithm, time) = match (&arguments.algorithm, profile) {
            (None, Some(profile)) => {
                let forecast = |bytes| placement.collective_time(sweep.collective, bytes);
                (None, measured_time(profile, bytes, forecast))
            }
            (None, None) => {
                let (algorithm, time) = placement.fastest(sweep.collective, bytes);
                (Some(algorithm.name()), time)
            }
            (Some(name), _) => {
                let algorithm = named(name);
                let time = algorithm.time(sweep.collective, bytes, &placement);
                let time = time.ok_or_else(|| cannot(algorithm, sweep, &placement))?;
                (Some(algorithm.name()), time)
            }
        };
        Ok(Row { bytes, time, algorithm, measured })
    });
    let rows = rows.collect::<Result<_, CliError>>()?;
    Ok(Table { cluster, sweep, rows })
}

fn named(name: &str) -> &'static dyn Algorithm {
    let found = ALGORITHMS.into_iter().find(|algorithm| algorithm.name() == name);
    found.expect("the names that are accepted are those of the algorithms")
}

/// The algorithm that was asked for cannot do it; these can.
fn cannot(algorithm: &dyn Algorithm, sweep: &Sweep, placement: &Placement) -> CliError {
    let able = |other: &&&dyn Algorithm| other.time(sweep.collective, sweep.sizes[0], placement).is_some();
    let able: Vec<&str> = ALGORITHMS.iter().filter(able).map(|other| other.name()).collect();
    CliError::Argument {
        argument: "--algorithm".into(),
        value: algorithm.name().into(),
        allowed: format!(
            "{} over {} can be done by {}",
            sweep.collective,
            page::group(sweep, placement.nodes),
            able.join(", ")
        ),
    }
}

/// The middle one; the lower one of two.
fn median(mut times: Vec<Seconds>) -> Option<Seconds> {
    times.sort_by(|a, b| a.get().total_cmp(&b.get()));
    times.get(times.len().saturating_sub(1) / 2).copied()
}

fn write_files(
    arguments: &NetworkArguments,
    tables: &[Table],
    profile: Option<&NetworkProfile>,
) -> Result<(), CliError> {
    if let (Some(path), Some(profile)) = (&arguments.write_profile, profile) {
        output::write("--write-profile", path, |out| out.write_all(profile.to_toml().as_bytes()))?;
    }
    let [table] = tables else { return Ok(()) };
    if let Some(path) = &arguments.svg {
        output::write("--svg", path, |out| out.write_all(svg(&plot(table)).as_bytes()))?;
    }
    if let Some(path) = &arguments.png {
        output::write("--png", path, |out| out.write_all(&png(&plot(table))))?;
    }
    if let Some(path) = &arguments.write_log {
        output::write("--write-log", path, |out| out.write_all(log(table).as_bytes()))?;
    }
    Ok(())
}

fn plot(table: &Table) -> SweepPlot {
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

fn log(table: &Table) -> String {
    let ranks = table.sweep.ranks.len();
    let times: Vec<_> = table.rows.iter().map(|row| (row.bytes, row.time)).collect();
    nccl_tests::write(&nccl_tests::Forecast {
        collective: table.sweep.collective,
        group: table.sweep.shape.unwrap_or(LoggedGroup { nodes: 1, ranks_per_node: ranks, groups: 1 }),
        gpu: &table.cluster.node.gpu.name,
        times: &times,
    })
}

/// What the log measured, for `--profile`.
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
    // What is written can be read: a log may have times that no profile may have.
    let origin = arguments.log.as_deref().unwrap_or_default();
    match question.cluster.clone().with_profile(profile.clone(), origin) {
        Ok(_) => Ok(profile),
        Err(error) => Err(CliError::of_input(Some("--log"), error)),
    }
}
