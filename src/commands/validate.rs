//! `validate`: a plan's forecast for this machine and its measured steps.

use super::calibrate::{TABLE, cluster_file, remark_refused, threads};
use super::other_programs::Ticks;
use crate::arguments::{TransportChoice, ValidateArguments};
use crate::error::{CliError, Outcome, refuse};
use crate::render;
use crate::render::validate::{Rounds, Validated, line, markdown, page, report, summary};
use crate::{inputs, output};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;
use trainwright_executor::{
    Calibrated, DEVICES, Grid, LearningRate, Measuring, Over, Records, Rendezvous, Settings, Tokens,
    calibrate, network_work, on_machine, train, train_in_processes,
};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::{Cluster, NetworkWork};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;
use trainwright_timeline::comparison::{Comparison, Pair};
use trainwright_timeline::timeline::Timeline;

/// How long ranks wait for rank 0, which measures the machine first: on a busy one, some minutes.
const MEASURING: Duration = Duration::from_secs(600);

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
        let all: Vec<_> = found.iter().map(render::validate::json).collect();
        output::print(&match &all[..] {
            [only] => render::json::print(only),
            all => render::json::print(&serde_json::json!({ "plans": all })),
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
    let place = place.map(|place| Rendezvous { patience: MEASURING, ..place });
    // The others wait while rank 0 measures the machine.
    let leads = place.as_ref().is_none_or(|place| place.rank == 0);
    let (mut rounds, began) = (Vec::new(), Ticks::now());
    for _ in 0..arguments.rounds {
        rounds.extend(round(arguments, plan, place.as_ref())?);
    }
    if !leads {
        return Ok(None);
    }
    // Other ranks that are processes are no other programs, and cannot be told from them here.
    let others = began.zip(Ticks::now()).filter(|_| place.is_none());
    let others = others.and_then(|(began, now)| began.others_until(now));
    remark_refused(
        rounds.iter().filter_map(|round| round.machine.as_ref()).flat_map(|machine| &machine.refused),
    );
    let (on_this_machine, expected) = forecast_of(arguments, plan, &rounds)?;
    let by_round = rounds.iter().map(|round| {
        let (_, expected) = forecast_of(arguments, plan, std::slice::from_ref(round))?;
        Ok(Pair { forecast: expected.duration.into(), measured: median(&round.times) })
    });
    let by_round = Rounds { times: by_round.collect::<Result<_, CliError>>()?, others };
    let times: Vec<Seconds> = rounds.iter().flat_map(|round| round.times.iter().copied()).collect();
    let steps: Vec<Timeline> = rounds.into_iter().flat_map(|round| round.steps).collect();
    let compared = Comparison::new(&expected, &steps, &times);
    let measured = typical(&steps).clone();
    let (name, on_device) = (String::new(), None);
    let (plan, rounds) = (on_this_machine, by_round);
    Ok(Some(Validated { name, plan, compared, rounds, expected, measured, on_device }))
}

/// The machine as it was, and the plan's steps right after that.
struct Round {
    /// `None` if the forecast is to use a profile.
    machine: Option<Calibrated>,
    network: Option<NetworkWork>,
    steps: Vec<Timeline>,
    times: Vec<Seconds>,
}

/// Measures the machine, then the plan. `None` except in the process of rank 0.
fn round(
    arguments: &ValidateArguments,
    plan: &Plan,
    place: Option<&Rendezvous>,
) -> Result<Option<Round>, CliError> {
    // The others wait while rank 0 measures the machine.
    let measures = place.is_none_or(|place| place.rank == 0) && arguments.profile.is_none();
    let machine = measures.then(|| machine(arguments, plan)).transpose()?;
    let of_node = plan.mesh.ranks().div_ceil(plan.cluster.nodes);
    let network = place.map(|place| network_work(place, of_node, arguments.emulated)).transpose()?.flatten();
    let measured = measure(arguments, plan, place)?;
    Ok(measured.map(|(steps, times)| Round { machine, network, steps, times }))
}

/// The plan on the machine as some rounds measured it, in their medians, and its forecast there.
fn forecast_of(
    arguments: &ValidateArguments,
    plan: &Plan,
    rounds: &[Round],
) -> Result<(Plan, Timeline), CliError> {
    let machines: Vec<Calibrated> = rounds.iter().filter_map(|round| round.machine.clone()).collect();
    let cluster = match (Calibrated::median(&machines), &arguments.profile) {
        (Some(machine), _) => machine.cluster,
        (None, folder) => profile(folder.as_deref().unwrap_or_default(), plan)?,
    };
    let mut joined = joined(arguments, plan, cluster);
    if let Some(cores) = &mut joined.node.cores {
        let networks: Vec<NetworkWork> = rounds.iter().filter_map(|round| round.network.clone()).collect();
        cores.network = NetworkWork::sum(&networks);
    }
    let plan = on_machine(plan, &joined)?;
    let (_, expected) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
    Ok((plan, expected))
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
    profile_of(folder, threads(plan.mesh.ranks()))
}

/// The same for ranks of that many threads.
pub(crate) fn profile_of(folder: &str, threads: usize) -> Result<Cluster, CliError> {
    let path = |name: &str| Path::new(folder).join(name).display().to_string();
    let named = path(&cluster_file(threads));
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

/// The median; of an even count the upper one of both, as `Comparison` has it.
fn median(times: &[Seconds]) -> Seconds {
    let mut sorted = times.to_vec();
    sorted.sort_by(|one, other| one.get().total_cmp(&other.get()));
    sorted[sorted.len() / 2]
}

/// The measured step of median length.
fn typical(measured: &[Timeline]) -> &Timeline {
    let mut sorted: Vec<&Timeline> = measured.iter().collect();
    sorted.sort_by_key(|timeline| timeline.duration);
    sorted[sorted.len() / 2]
}
