//! `validate`: a plan's forecast for this machine and its measured steps.

use super::calibrate::{TABLE, cluster_file, remark_refused, threads};
use crate::arguments::{TransportChoice, ValidateArguments};
use crate::error::{CliError, Outcome, refuse};
use crate::render::json;
use crate::render::validate::{Validated, line, markdown, page, report, summary};
use crate::{inputs, output};
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{
    Calibrated, DEVICES, Grid, LearningRate, Measuring, Over, Records, Rendezvous, Settings, Tokens,
    calibrate, network_work, on_machine, train, train_in_processes,
};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::{Cluster, NetworkWork};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;
use trainwright_timeline::comparison::Comparison;
use trainwright_timeline::timeline::Timeline;

/// Steps before those that are measured.
const WARM_UP: usize = 3;

/// Runs the command.
///
/// # Errors
/// Bad input, a plan that the executor does not run, a rank that stops, and files that cannot be written.
pub fn run(arguments: &ValidateArguments) -> Result<Outcome, CliError> {
    let files = [("--report", &arguments.report), ("--markdown", &arguments.markdown)];
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    if let (Some(path), [_, _, ..]) = (&arguments.report, &arguments.plan[..]) {
        let allowed = "it is of one plan: leave it out, or the other plans";
        return Err(refuse("--report", path, allowed));
    }
    let plans = arguments.plan.iter().map(|path| {
        let plan = inputs::plan(path, &[], None)?;
        let Some(reference) = &arguments.cluster else { return Ok(plan) };
        let plan = Plan { cluster: inputs::cluster(reference, &[])?, ..plan };
        let checked = plan.check(path).map_err(|error| CliError::of_input(Some("--cluster"), error));
        checked.map(|()| plan)
    });
    let plans: Vec<Plan> = plans.collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for (path, plan) in arguments.plan.iter().zip(&plans) {
        let Some(validated) = validate(arguments, plan)? else { continue };
        found.push(Validated { name: name(path), ..validated });
        if plans.len() > 1 && !alone && !arguments.json {
            output::print(&line(found.last().expect("it was just added")))?;
        }
    }
    if found.is_empty() {
        return Ok(Outcome::Done);
    }
    if let (Some(path), [only]) = (&arguments.report, &found[..]) {
        output::save("--report", path, report(only))?;
    }
    output::save_given("--markdown", &arguments.markdown, || markdown(&found))?;
    if arguments.json {
        let all: Vec<&Comparison> = found.iter().map(|one| &one.compared).collect();
        output::print(&match &all[..] {
            [only] => json::print(only),
            all => json::print(&all),
        })?;
    } else if !alone {
        output::print(&match &found[..] {
            [only] => page(only),
            all => summary(all),
        })?;
    }
    Ok(Outcome::Done)
}

/// The plan's name for people: its file's.
fn name(path: &str) -> String {
    Path::new(path).file_stem().map_or_else(|| path.into(), |stem| stem.to_string_lossy().into_owned())
}

/// Measures the machine and the plan in turn, some rounds, so that other load on the machine affects both alike, and compares
/// the forecast from the medians of the former with the latter. `None` except in the process of rank 0.
fn validate(arguments: &ValidateArguments, plan: &Plan) -> Result<Option<Validated>, CliError> {
    if arguments.device != DEVICES[0] {
        return super::on_device::validate(arguments, plan).map(Some);
    }
    let place = inputs::launched::place(arguments.transport)?;
    place.as_ref().map_or(Ok(()), Rendezvous::enter)?;
    // The others wait while rank 0 measures the machine.
    let leads = place.as_ref().is_none_or(|place| place.rank == 0);
    let (mut machines, mut networks, mut steps, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        if leads && arguments.profile.is_none() {
            machines.push(machine(arguments, plan)?);
        }
        if let Some(place) = &place {
            let of_node = plan.mesh.ranks().div_ceil(plan.cluster.nodes);
            networks.extend(network_work(place, of_node, arguments.emulated)?);
        }
        if let Some((round_steps, round_times)) = measure(arguments, plan, place.as_ref())? {
            steps.extend(round_steps);
            times.extend(round_times);
        }
    }
    if !leads {
        return Ok(None);
    }
    remark_refused(machines.iter().flat_map(|machine| &machine.refused));
    let cluster = match (Calibrated::median(&machines), &arguments.profile) {
        (Some(machine), _) => machine.cluster,
        (None, folder) => profile(folder.as_deref().unwrap_or_default(), plan)?,
    };
    let mut joined = joined(arguments, plan, cluster);
    if let Some(cores) = &mut joined.node.cores {
        cores.network = NetworkWork::sum(&networks);
    }
    let plan = on_machine(plan, &joined)?;
    let (_, expected) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
    let compared = Comparison::new(&expected, &steps, &times);
    let measured = typical(&steps).clone();
    Ok(Some(Validated { name: String::new(), plan, compared, expected, measured, on_device: None }))
}

/// This machine as it is now, for as many ranks.
fn machine(arguments: &ValidateArguments, plan: &Plan) -> Result<Calibrated, CliError> {
    let ranks = plan.mesh.ranks();
    let (ranks, over) = match arguments.transport {
        TransportChoice::Threads => (ranks, Over::Threads),
        _ if arguments.emulated => (ranks, Over::Tcp),
        _ => (plan.cluster.node.gpus.value, Over::Tcp),
    };
    let measuring = Measuring { ranks, over, grid: Grid::None, plans: std::slice::from_ref(plan) };
    Ok(calibrate(measuring, &mut |_, _| {})?)
}

/// This machine as `calibrate` measured it.
pub(super) fn profile(folder: &str, plan: &Plan) -> Result<Cluster, CliError> {
    let path = |name: &str| Path::new(folder).join(name).display().to_string();
    let named = path(&cluster_file(threads(plan.mesh.ranks())));
    let text = inputs::text(Some("--profile"), &named)?;
    let refuse = |error| CliError::of_input(Some("--profile"), error);
    let cluster = Cluster::from_toml(&text, &named).map_err(refuse)?;
    let table = path(TABLE);
    cluster.with_device_profile(&inputs::text(Some("--profile"), &table)?, &table).map_err(refuse)
}

/// Hosts like this machine, joined as the plan's are.
fn joined(arguments: &ValidateArguments, plan: &Plan, machine: Cluster) -> Cluster {
    if arguments.transport == TransportChoice::Threads {
        return machine;
    }
    let Cluster { nodes, fabric, .. } = plan.cluster.clone();
    let mut joined = Cluster { nodes, fabric, ..machine };
    joined.node.gpus = plan.cluster.node.gpus.clone();
    joined.node.nics = plan.cluster.node.nics.clone();
    if let Some(cores) = &mut joined.node.cores {
        cores.emulated = arguments.emulated;
    }
    joined
}

/// The steps of a run, op by op, and how long each took.
type Steps = (Vec<Timeline>, Vec<Seconds>);

/// The timelines of the steps after the first ones, and their times.
fn measure(
    arguments: &ValidateArguments,
    plan: &Plan,
    place: Option<&Rendezvous>,
) -> Result<Option<Steps>, CliError> {
    let settings = Settings {
        steps: arguments.steps + WARM_UP,
        // What the weights become does not matter; at a rate of zero they cannot grow to NaN.
        learning_rate: LearningRate::constant(0.0),
        threads: match place {
            Some(place) => inputs::launched::threads(place.world)?,
            None => std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        },
        records: Records::EveryStep,
        device: arguments.device,
        ..Settings::default()
    };
    let tokens = Tokens::synthetic(plan.model.vocab, plan.job.tokens() * 4 + 1, 0);
    let ran = match place {
        Some(place) => train_in_processes(place, plan, &tokens, &settings, &mut |_| {})?,
        None => Some(train(plan, &tokens, &settings, &mut |_| {})?),
    };
    let Some(mut ran) = ran else { return Ok(None) };
    let times = ran.steps.iter().skip(WARM_UP).map(|step| Seconds::new(step.seconds)).collect();
    ran.earlier.push(ran.timeline);
    Ok(Some((ran.earlier.split_off(WARM_UP), times)))
}

/// The measured step of median length.
fn typical(measured: &[Timeline]) -> &Timeline {
    let mut sorted: Vec<&Timeline> = measured.iter().collect();
    sorted.sort_by_key(|timeline| timeline.duration);
    sorted[sorted.len() / 2]
}
