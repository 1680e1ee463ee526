//! From a file of jobs and a cluster to an instance: every job with its choices and the plan of each.

use crate::arguments::FleetArguments;
use crate::error::CliError;
use crate::inputs::{self, calibration};
use crate::progress::Bar;
use std::collections::BTreeMap;
use std::sync::Arc;
use trainwright_fleet::instance::{Choice, FleetError, FleetJob, Instance, NodeKind, User};
use trainwright_fleet::jobs::{JobFile, JobRow, NamedJob, read};
use trainwright_fleet::options::{Planned, choice, gpu_counts, words};
use trainwright_fleet::throughputs::{self, Throughput};
use trainwright_planner::{Pins, Question, Risk};
use trainwright_spec::adapters::{Adapters, BaseFormat};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::optimizer::optimizer;
use trainwright_spec::plan::{Plan, adapters_allowed, sequence_allowed};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;
use trainwright_whatif::price::list_price;

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
    let empty = Instance { kinds, jobs: jobs.iter().map(waiting).collect(), users: users(&file), contiguous };
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
    let mut asked = Planned::default();
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
            None => planned(path, (index, job), &clusters, &mut fleet, &mut asked, (arguments, &within))?,
        };
        let place = names.iter().position(|name| *name == group);
        fleet.groups.push(place.unwrap_or(names.len()));
        if place.is_none() {
            names.push(group);
        }
        fleet.instance.jobs[index].choices = choices;
    }
    let emptied = fleet.instance.emptied();
    fleet.instance = std::mem::replace(&mut fleet.instance, emptied).without_dominated();
    Ok(fleet)
}

/// The users of a file.
pub fn users(file: &JobFile) -> Vec<User> {
    file.user.iter().map(|of| User { name: of.name.clone(), max_gpus: of.max_gpus }).collect()
}

/// A job without a way to run yet.
pub fn waiting(job: &NamedJob) -> FleetJob {
    FleetJob {
        name: job.name.clone(),
        choices: Vec::new(),
        release: (3600.0 * job.row.earliest_h.unwrap_or(0.0)).ceil() as u64,
        deadline: job.row.deadline_h.map(|hours| (3600.0 * hours) as u64),
        weight: job.weight,
        after: job.after.clone(),
        user: job.user,
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

/// Choices with the planner's plans, and what their forecasts have in common.
fn planned(
    path: &str,
    (index, job): (usize, &NamedJob),
    clusters: &[Cluster],
    fleet: &mut Fleet,
    asked: &mut Planned,
    (arguments, within): (&FleetArguments, &dyn Fn(usize) -> bool),
) -> Result<(Vec<Choice>, String), CliError> {
    let mut choices = Vec::new();
    let mut reason = format!("min_gpus and max_gpus leave no number of GPUs that {} has", fleet.cluster.name);
    let quota = fleet.instance.quota_of(index).unwrap_or(usize::MAX);
    let mut least_beyond = None;
    let mut group = String::new();
    for (kind, cluster) in clusters.iter().enumerate() {
        let question = question(path, job, cluster, arguments.calibration.as_deref())?;
        let Question { model, stack, job: of, .. } = &question;
        group = format!("{} {} {:?}", model.name, stack.name, of.precision);
        let steps = job.row.step_count(of.tokens() as f64).unwrap_or(1.0);
        for gpus in
            gpu_counts(cluster.nodes, cluster.node.gpus.value).into_iter().filter(|gpus| within(*gpus))
        {
            if gpus > quota {
                least_beyond = Some(least_beyond.map_or(gpus, |least: usize| least.min(gpus)));
                continue;
            }
            let found = match asked.best(&question, gpus) {
                Ok(found) => found,
                Err(why) => {
                    let many = if gpus == 1 { "" } else { "s" };
                    reason = format!("on {gpus} GPU{many}: {why}");
                    continue;
                }
            };
            let at = arguments.risk.map_or(1.0, |risk| quantile(&found.spread, risk));
            let of = choice(kind, gpus, (found.step * at, steps), fleet.prices[kind]);
            let spread = found.spread.iter().map(|factor| factor / at).collect();
            choices.push(Choice { plan: words(&found.plan), spread, ..of });
            fleet.plans.insert((index, kind, gpus), found.plan);
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

/// What the planner is asked for a job on nodes of one kind, with the calibration that was given.
///
/// # Errors
/// The first key that is missing or makes no sense.
pub fn question(
    path: &str,
    job: &NamedJob,
    cluster: &Cluster,
    calibration: Option<&str>,
) -> Result<Question, CliError> {
    let row = &job.row;
    let missing = |key: &str| bad(path, job, key, "it is missing");
    let reference = row.model.as_ref().ok_or_else(|| missing("model"))?;
    let model = inputs::model(reference).map_err(|error| bad(path, job, "model", error.line()))?;
    let sequence = row.seq.ok_or_else(|| missing("seq"))?;
    let global_batch = row.global_batch.ok_or_else(|| missing("global_batch"))?;
    sequence_allowed(&model, sequence)
        .map_err(|allowed| bad(path, job, "seq", format!("{sequence}; {allowed}")))?;
    if global_batch == 0 || global_batch > 10_000_000 {
        return Err(bad(
            path,
            job,
            "global_batch",
            format!("{global_batch}; it should be from 1 to 10000000"),
        ));
    }
    let known: Vec<&str> = cluster.node.gpu.peak.keys().map(|precision| precision.name()).collect();
    let given = Precision::ALL.into_iter().find(|of| row.precision.as_deref() == Some(of.name()));
    let precision = match (&row.precision, given) {
        (Some(_), Some(given)) if known.contains(&given.name()) => given,
        (Some(name), _) => {
            let allowed = format!("{name:?}; {} computes in {}", cluster.node.gpu.name, known.join(", "));
            return Err(bad(path, job, "precision", allowed));
        }
        (None, _) => inputs::precision(None, cluster)?,
    };
    let name = row.optimizer.as_deref().unwrap_or("adamw");
    optimizer(name).map_err(|error| bad(path, job, "optimizer", error))?;
    let stack = row.stack.as_deref().unwrap_or("megatron-core");
    let stack = Stack::from_name(stack).map_err(|error| bad(path, job, "stack", error))?;
    let adapters = adapters(path, job, row, &model)?;
    let mut question = Question {
        job: Job { optimizer: name.into(), adapters, ..Job::new(sequence, global_batch, precision) },
        model,
        cluster: cluster.clone(),
        stack,
        pins: Pins::default(),
        risk: Risk { residuals: Arc::default(), ..Risk::default() },
    };
    calibration::calibrate(calibration, &mut question.cluster, &mut question.stack)?;
    question.risk.residuals = calibration::of(calibration, &question.cluster)?.residuals;
    Ok(question)
}

fn adapters(
    path: &str,
    job: &NamedJob,
    row: &JobRow,
    model: &trainwright_spec::model::Model,
) -> Result<Option<Adapters>, CliError> {
    let Some(rank) = row.lora else {
        return match &row.base_format {
            None => Ok(None),
            Some(name) => Err(bad(
                path,
                job,
                "base_format",
                format!("{name:?}; it is of adapters: give their rank, lora"),
            )),
        };
    };
    let name = row.base_format.as_deref().unwrap_or("full");
    let base = BaseFormat::ALL.into_iter().find(|of| of.name() == name).ok_or_else(|| {
        let known: Vec<&str> = BaseFormat::ALL.iter().map(|of| of.name()).collect();
        bad(path, job, "base_format", format!("{name:?}; it should be {}", known.join(", ")))
    })?;
    let adapters = Adapters::of_all(rank, base, model);
    adapters_allowed(&adapters, model)
        .map_err(|allowed| bad(path, job, "lora", format!("{rank}; {allowed}")))?;
    Ok(Some(adapters))
}
