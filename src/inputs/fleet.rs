//! From a file of jobs and a cluster to an instance: every job with its choices and the plan of each.

mod asked;

use self::asked::{Asked, Way, key_of_list};
use crate::arguments::{FleetArguments, RELIABILITY};
use crate::error::CliError;
use crate::inputs;
use crate::progress::Bar;
use std::collections::BTreeMap;
use trainwright_fleet::instance::{Choice, FleetError, FleetJob, Instance, NodeKind, User};
use trainwright_fleet::jobs::{JobFile, NamedJob, read};
use trainwright_fleet::options::{choice, gpu_counts};
use trainwright_fleet::throughputs::{self, Throughput};
use trainwright_planner::Question;
use trainwright_sim::goodput::goodput;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::plan::Plan;
use trainwright_spec::reliability::Reliability;
use trainwright_spec::units::Seconds;
use trainwright_whatif::price::list_price;

/// Seconds in which a job's processes start: assumed.
const START: u64 = 120;

/// What is to be scheduled, with what belongs to it.
pub struct Fleet {
    /// Nodes, jobs and choices.
    pub instance: Instance,
    /// The cluster.
    pub cluster: Cluster,
    /// The plan of a job on so many GPUs of a kind: (job, kind, GPUs). Empty with a table of speeds.
    pub plans: BTreeMap<(usize, usize, usize), Plan>,
    /// Jobs whose forecasts are wrong together have the same number.
    pub groups: Vec<usize>,
    /// US dollars for a GPU and hour of each kind; `None` where no list has it.
    pub prices: Vec<Option<f64>>,
}

/// Reads the jobs and asks the planner.
///
/// # Errors
/// The first fault of the file, or a job that never fits.
pub fn fleet(arguments: &FleetArguments) -> Result<Fleet, CliError> {
    let path = if arguments.jobs == "-" { "standard input" } else { &arguments.jobs };
    let (file, jobs) = read(&inputs::text(None, &arguments.jobs)?, path)?;
    let cluster = inputs::cluster(&arguments.cluster, &[])?;
    let clusters: Vec<Cluster> = (0..cluster.kinds().count()).map(|kind| cluster.only(kind)).collect();
    let listed = |cluster: &Cluster| list_price(cluster).map(|price| price.per_gpu.get());
    let prices: Vec<Option<f64>> = clusters.iter().map(|of| arguments.price.or_else(|| listed(of))).collect();
    let kinds: Vec<NodeKind> = clusters
        .iter()
        .map(|of| NodeKind { name: of.node.name.clone(), nodes: of.nodes, gpus: of.node.gpus.value })
        .collect();
    let contiguous = !arguments.any_nodes;
    let restart = arguments.restart.unwrap_or(START);
    let empty = Instance {
        kinds,
        jobs: jobs.iter().map(|job| waiting(job, restart)).collect(),
        users: users(&file),
        contiguous,
    };
    // Before minutes are spent on plans.
    empty.sorted()?;
    let table = match &file.throughputs {
        None => None,
        Some(table) => {
            let rows = throughputs::read(&inputs::text(None, table)?);
            Some(rows.map_err(|reason| no_answer(format!("{table}: {reason}")))?)
        }
    };
    let mut fleet = Fleet { instance: empty, cluster, plans: BTreeMap::new(), groups: Vec::new(), prices };
    let mut known = Known::new();
    let mut names: Vec<String> = Vec::new();
    let bar = Bar::new();
    for (index, job) in jobs.iter().enumerate() {
        bar.show("plans of jobs", index, jobs.len());
        let row = &job.row;
        let within =
            |gpus: usize| (row.min_gpus.unwrap_or(1)..=row.max_gpus.unwrap_or(usize::MAX)).contains(&gpus);
        quota_allows(&fleet.instance, index, row.min_gpus)?;
        let (choices, group) = match &table {
            Some(table) => (measured(path, job, table, &fleet, &within)?, job.name.clone()),
            None => planned(path, (index, job), &clusters, &mut fleet, &mut known, (arguments, &within))?,
        };
        let place = names.iter().position(|name| *name == group);
        fleet.groups.push(place.unwrap_or(names.len()));
        if place.is_none() {
            names.push(group);
        }
        fleet.instance.jobs[index].choices = choices;
    }
    if arguments.restart.is_none() && (arguments.preempt || arguments.observed.is_some()) {
        add_checkpoints(&mut fleet)?;
    }
    let emptied = fleet.instance.emptied();
    fleet.instance = std::mem::replace(&mut fleet.instance, emptied).without_dominated();
    Ok(fleet)
}

/// Adds to the restart of each job the time in which its checkpoint is written and read: the longest of its plans.
fn add_checkpoints(fleet: &mut Fleet) -> Result<(), CliError> {
    let reliability = Reliability::from_name(RELIABILITY);
    let reliability = reliability.map_err(|error| CliError::of_input(None, error))?;
    for ((job, _, _), plan) in &fleet.plans {
        if let Some(restart) = &mut fleet.instance.jobs[*job].restart {
            let checkpoint = goodput(plan, &reliability).checkpoint_time.get();
            *restart = (*restart).max(START + (2.0 * checkpoint).ceil() as u64);
        }
    }
    Ok(())
}

/// The users of a file.
pub fn users(file: &JobFile) -> Vec<User> {
    file.user.iter().map(|of| User { name: of.name.clone(), max_gpus: of.max_gpus }).collect()
}

/// A job without a way to run yet.
pub fn waiting(job: &NamedJob, restart: u64) -> FleetJob {
    FleetJob {
        name: job.name.clone(),
        choices: Vec::new(),
        release: (3600.0 * job.row.earliest_h.unwrap_or(0.0)).ceil() as u64,
        deadline: job.row.deadline_h.map(|hours| (3600.0 * hours) as u64),
        weight: job.weight,
        after: job.after.clone(),
        user: job.user,
        // Who asks a deployment does not wait for its restart.
        restart: job.row.preempt.unwrap_or(job.row.serve.is_none()).then_some(restart),
    }
}

fn no_answer(reason: String) -> CliError {
    CliError::NoAnswer { reason }
}

/// A key of a job with what is wrong with it.
pub fn bad(path: &str, job: &NamedJob, key: &str, what: impl std::fmt::Display) -> CliError {
    no_answer(format!("{path}: job `{}`: `{key}`: {what}", job.name))
}

/// Refuses a job whose fewest GPUs by the file are more than its user may have.
///
/// # Errors
/// `NeverFits`.
pub fn quota_allows(instance: &Instance, job: usize, least: Option<usize>) -> Result<(), FleetError> {
    match (instance.jobs[job].user, instance.quota_of(job), least) {
        (Some(user), Some(quota), Some(least)) if least > quota => Err(FleetError::NeverFits {
            job: instance.jobs[job].name.clone(),
            reason: instance.exceeds_quota(user, least),
        }),
        _ => Ok(()),
    }
}

/// Choices out of a table of speeds.
fn measured(
    path: &str,
    job: &NamedJob,
    table: &[Throughput],
    fleet: &Fleet,
    within: &dyn Fn(usize) -> bool,
) -> Result<Vec<Choice>, CliError> {
    if job.row.rl.is_some() || job.row.serve.is_some() {
        return Err(bad(path, job, key_of_list(job), "with `throughputs` jobs have a profile and steps"));
    }
    let Some(profile) = &job.row.profile else {
        return Err(bad(path, job, "profile", "it is missing; with `throughputs` every job names one"));
    };
    let Some(steps) = job.row.steps else {
        return Err(bad(path, job, "steps", "it is missing; with `throughputs` a job has steps"));
    };
    let rows: Vec<&Throughput> = table.iter().filter(|row| row.profile == *profile).collect();
    if rows.is_empty() {
        return Err(bad(path, job, "profile", format!("{profile:?} is not in the table")));
    }
    let mut choices = Vec::new();
    for (kind, of) in fleet.instance.kinds.iter().enumerate() {
        let on_kind = |row: &&&Throughput| row.node.as_ref().is_none_or(|node| *node == of.name);
        for row in rows.iter().filter(on_kind).filter(|row| row.steps_per_s > 0.0 && within(row.gpus)) {
            let step = Seconds::new(1.0 / row.steps_per_s);
            let plan = profile.clone();
            choices.push(Choice { plan, ..choice(kind, row.gpus, (step, steps), fleet.prices[kind]) });
        }
    }
    choices.retain(|choice| fleet.instance.is_there(choice));
    match choices.is_empty() {
        true => Err(FleetError::NeverFits {
            job: job.name.clone(),
            reason: "the table has no speed for it on GPUs that there are".into(),
        }
        .into()),
        false => Ok(choices),
    }
}

/// Ways that were found already: copies of a job ask the same. By kind of node, GPUs, and arguments.
type Known = BTreeMap<(usize, Option<usize>, Vec<String>), Result<Way, String>>;

/// Choices with the planner's plans, and what their forecasts have in common.
fn planned(
    path: &str,
    (index, job): (usize, &NamedJob),
    clusters: &[Cluster],
    fleet: &mut Fleet,
    known: &mut Known,
    (arguments, within): (&FleetArguments, &dyn Fn(usize) -> bool),
) -> Result<(Vec<Choice>, String), CliError> {
    let mut choices = Vec::new();
    let mut reason = format!("min_gpus and max_gpus leave no number of GPUs that {} has", fleet.cluster.name);
    let quota = fleet.instance.quota_of(index).unwrap_or(usize::MAX);
    let mut least_beyond = None;
    let given = asked::arguments(job, arguments.calibration.as_deref());
    let asked = Asked::of(path, job, &given)?;
    let mut group = given.join(" ");
    for (kind, cluster) in clusters.iter().enumerate() {
        let question = asked.check(path, job, cluster)?;
        if let Some(Question { model, stack, job: of, .. }) = &question {
            group = format!("{} {} {:?}", model.name, stack.name, of.precision);
        }
        let steps = question
            .as_ref()
            .map_or(job.row.steps, |question| job.row.step_count(question.job.tokens() as f64));
        let counts = match &asked {
            Asked::Serving(_) => vec![None],
            _ => {
                let all = gpu_counts(cluster.nodes, cluster.node.gpus.value);
                all.into_iter().filter(|gpus| within(*gpus)).map(Some).collect()
            }
        };
        for count in counts {
            let mut beyond = |gpus: usize| {
                let is_beyond = gpus > quota;
                if is_beyond {
                    least_beyond = Some(least_beyond.map_or(gpus, |least: usize| least.min(gpus)));
                }
                is_beyond
            };
            if count.is_some_and(&mut beyond) {
                continue;
            }
            let find = || asked.way(cluster, question.as_ref(), count);
            let found = match known.entry((kind, count, given.clone())).or_insert_with(find).clone() {
                Ok(found) => found,
                Err(why) => {
                    reason = match count {
                        Some(1) => format!("on 1 GPU: {why}"),
                        Some(gpus) => format!("on {gpus} GPUs: {why}"),
                        None => why,
                    };
                    continue;
                }
            };
            let gpus = found.gpus;
            if count.is_none() && (!within(gpus) || beyond(gpus)) {
                continue;
            }
            let at = arguments.risk.map_or(1.0, |risk| quantile(&found.spread, risk));
            let time = match job.row.hours.filter(|_| count.is_none()) {
                Some(hours) => (Seconds::new(3600.0 * hours), 1.0),
                None => (found.step * at, steps.unwrap_or(1.0)),
            };
            let of = choice(kind, gpus, time, fleet.prices[kind]);
            let spread = found.spread.iter().map(|factor| factor / at).collect();
            choices.push(Choice { plan: found.words, spread, ..of });
            fleet.plans.extend(found.plan.map(|plan| ((index, kind, gpus), plan)));
        }
    }
    match (choices.is_empty(), least_beyond.zip(fleet.instance.jobs[index].user)) {
        (true, Some((least, user))) => {
            let reason = fleet.instance.exceeds_quota(user, least);
            Err(FleetError::NeverFits { job: job.name.clone(), reason }.into())
        }
        (true, None) => Err(FleetError::NeverFits { job: job.name.clone(), reason }.into()),
        (false, _) => Ok((choices, group)),
    }
}

/// The value that this fraction of equally likely ones stays below; one if nothing is known.
fn quantile(spread: &[f64], fraction: f64) -> f64 {
    let place = (fraction * spread.len() as f64) as usize;
    spread.get(place.min(spread.len().saturating_sub(1))).copied().unwrap_or(1.0)
}

/// What the planner is asked for a training on nodes of one kind, with the calibration that was given.
///
/// # Errors
/// The first key that is missing or makes no sense, and a job that is no training.
pub fn question(
    path: &str,
    job: &NamedJob,
    cluster: &Cluster,
    calibration: Option<&str>,
) -> Result<Question, CliError> {
    let asked = Asked::of(path, job, &asked::arguments(job, calibration))?;
    let question = asked.check(path, job, cluster)?;
    question
        .ok_or_else(|| bad(path, job, key_of_list(job), "trainings alone are carried out on this machine"))
}
