//! The jobs of a file with a plan for each number of cores, and what a step takes on this machine.

use super::log::{Changed, log};
use super::processes::{CHECKPOINTS, PROCESS};
use crate::arguments::{Arguments, FleetRunArguments};
use crate::commands::calibrate::remark_refused;
use crate::commands::fleet::plain_name;
use crate::commands::validate::profile_of;
use crate::error::{CliError, refuse};
use crate::inputs::fleet::{bad, question, quota_allows, users, waiting};
use crate::inputs::{self, runnable};
use crate::output;
use crate::progress::Bar;
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{DEVICES, Grid, Measuring, Over, calibrate, last_checkpoint, on_machine};
use trainwright_fleet::instance::{Choice, FleetError, FleetJob, Instance, NodeKind};
use trainwright_fleet::jobs::{NamedJob, read};
use trainwright_fleet::options::{choice, gpu_counts, words};
use trainwright_fleet::part::part;
use trainwright_planner::Question;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// Other files and folders of a fleet's folder, which no job's folder may replace.
const OTHERS: [&str; 2] = [PLANS, PROCESS];
/// The table of plans and their forecasts in a fleet's folder.
const TABLE: &str = "choices.csv";
/// The most steps of a job.
const MOST_STEPS: usize = 100_000_000;
/// The longest step of a table, in seconds.
const LONGEST_STEP: f64 = 86_400.0;
/// The longest time of all jobs one after the other, in days.
const MOST_DAYS: f64 = 10_000.0;
/// The folder of plans in it.
const PLANS: &str = "plans";
/// Arguments of `run` that a fleet gives itself.
const OWN: [&str; 14] = [
    "--steps",
    "--save",
    "--save-every",
    "--resume",
    "--metrics",
    "--threads",
    "--launch",
    "--elastic",
    "--restarts",
    "--transport",
    "--profile",
    "--json",
    "--device",
    "--quiet",
];

/// Jobs that can be scheduled on this machine.
pub struct Prepared {
    /// The machine as one node, its jobs, and their choices.
    pub instance: Instance,
    /// The last step of each job.
    pub steps: Vec<usize>,
    /// The arguments of each job's `run`.
    pub arguments: Vec<Vec<String>>,
    /// For each job and number of cores the plan's file and a step's time.
    pub plans: BTreeMap<(usize, usize), (String, Seconds)>,
    /// The log of earlier calls; empty if there was none.
    pub log: String,
}

/// A row of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    job: String,
    cores: usize,
    /// The last step.
    steps: usize,
    step_s: f64,
    plan: String,
    /// The arguments of its `run`, as JSON.
    run: String,
}

/// The jobs of a file, and where they are to run.
pub struct Jobs {
    /// The file.
    path: String,
    jobs: Vec<NamedJob>,
    /// The folder of each in that of the fleet.
    names: Vec<String>,
    /// The cores of the machine, and those of the fleet.
    machine: usize,
    cores: usize,
    /// The machine as one node, and jobs without choices yet.
    instance: Instance,
}

/// Reads the jobs, and refuses what can be seen before anything is measured or written.
///
/// # Errors
/// The first fault.
pub fn jobs(arguments: &FleetRunArguments) -> Result<Jobs, CliError> {
    let path = &arguments.jobs;
    let (file, jobs) = read(&inputs::text(None, path)?, path)?;
    if let Some(table) = &file.throughputs {
        let reason = format!("{path}: `throughputs` is {table:?}; speeds are measured here: leave it out");
        return Err(CliError::NoAnswer { reason });
    }
    let machine = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cores = arguments.cores.map_or(machine, NonZeroUsize::get);
    if cores > machine {
        let many = if machine == 1 { "" } else { "s" };
        return Err(refuse("--cores", cores, format!("this machine has {machine} core{many}")));
    }
    let kinds = vec![NodeKind { name: "this machine".into(), nodes: 1, gpus: cores }];
    let instance = Instance {
        kinds,
        jobs: jobs.iter().map(|job| waiting(job, arguments.restart)).collect(),
        users: users(&file),
        contiguous: true,
    };
    instance.sorted()?;
    let names: Vec<String> = (0..jobs.len()).map(|job| plain_name(&instance, job)).collect();
    for (index, (job, name)) in jobs.iter().zip(&names).enumerate() {
        check(path, job)?;
        if OTHERS.contains(&name.as_str()) || names[..index].contains(name) {
            let what =
                format!("{:?}; the folder `{name}` belongs to something else: take another name", job.name);
            return Err(bad(path, job, "name", what));
        }
        quota_allows(&instance, index, job.row.min_gpus)?;
        if counts(job, cores).is_empty() {
            let tried: Vec<String> = gpu_counts(1, cores).iter().map(usize::to_string).collect();
            let tried = tried.join(", ");
            let reason =
                format!("min_gpus and max_gpus leave none of the numbers of cores that are tried: {tried}");
            return Err(FleetError::NeverFits { job: job.name.clone(), reason }.into());
        }
    }
    Ok(Jobs { path: path.clone(), jobs, names, machine, cores, instance })
}

/// The numbers of cores that a job may have.
fn counts(job: &NamedJob, cores: usize) -> Vec<usize> {
    let allowed = job.row.min_gpus.unwrap_or(1)..=job.row.max_gpus.unwrap_or(usize::MAX);
    gpu_counts(1, cores).into_iter().filter(|count| allowed.contains(count)).collect()
}

/// Plans the jobs that the folder has no plans of, and measures what their steps take.
///
/// # Errors
/// A folder that is of other jobs, a job that never fits, and a machine that cannot be measured.
pub fn prepare(arguments: &FleetRunArguments, jobs: Jobs) -> Result<Prepared, CliError> {
    let known = known(&arguments.out)?;
    let names = jobs.names.clone();
    let mut found = Found { folder: &arguments.out, names: &names, known, choices: Vec::new() };
    let planned = plans(jobs.questions(arguments, &mut found)?);
    for ((index, cores, plan), step) in planned.iter().zip(step_times(&planned, jobs.machine)?) {
        found.add((*index, &jobs.jobs[*index].name, *cores), plan, step)?;
    }
    jobs.with_choices(found)
}

impl Jobs {
    /// What the planner is to be asked: job, cores and question of what the folder has no plan of.
    fn questions(
        &self,
        arguments: &FleetRunArguments,
        found: &mut Found,
    ) -> Result<Vec<(usize, usize, Question)>, CliError> {
        let mut asked = Vec::new();
        let mut planning = None;
        for (index, job) in self.jobs.iter().enumerate() {
            let quota = self.instance.quota_of(index).unwrap_or(self.cores);
            for cores in counts(job, self.cores).into_iter().filter(|cores| *cores <= quota) {
                if found.has(&self.path, (index, job), cores)? {
                    continue;
                }
                let machine = match &planning {
                    Some(machine) => machine,
                    None => planning.insert(planning_machine(arguments, self.machine)?),
                };
                asked.extend(ask(&self.path, job, machine, cores)?.map(|question| (index, cores, question)));
            }
        }
        Ok(asked)
    }

    /// The jobs with their choices; the folder's table and log become those of these jobs.
    fn with_choices(self, mut found: Found) -> Result<Prepared, CliError> {
        let Jobs { path, jobs, mut instance, .. } = self;
        let (mut plans, mut steps, mut changed) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (index, job) in jobs.iter().enumerate() {
            let of_job: Vec<&PlannedChoice> =
                found.choices.iter().filter(|choice| choice.job == index).collect();
            let Some(PlannedChoice { file, .. }) = of_job.first() else {
                let reason = "the planner has no plan for it that the executor runs on these cores".into();
                return Err(FleetError::NeverFits { job: job.name.clone(), reason }.into());
            };
            let now = last_step(job, inputs::plan(file, &[], None)?.job.tokens());
            steps.push(now);
            let before =
                of_job.iter().map(|choice| choice.row.steps).find(|before| ![0, now].contains(before));
            changed.extend(before.map(|before| Changed { job: job.name.clone(), before, now }));
            for PlannedChoice { file, row, .. } in of_job {
                let step = Seconds::new(row.step_s);
                // What a job costs is the time of its cores.
                let of = choice(0, row.cores, (step, now as f64), Some(1.0));
                instance.jobs[index].choices.push(Choice { plan: row.plan.clone(), ..of });
                plans.insert((index, row.cores), (file.clone(), step));
            }
        }
        let longest =
            |job: &FleetJob| job.choices.iter().map(|choice| choice.duration).max().unwrap_or(0) as f64;
        let days = instance.jobs.iter().map(longest).sum::<f64>() / 86_400.0;
        if days > MOST_DAYS {
            let reason = format!(
                "{path}: the jobs take {days:.0} days by their forecasts; {MOST_DAYS} are carried out at most"
            );
            return Err(CliError::NoAnswer { reason });
        }
        for row in &mut found.known {
            if let Some(index) = jobs.iter().position(|job| job.name == row.job) {
                (row.steps, row.run) = (steps[index], run_of(&jobs[index]));
            }
        }
        let log = log(found.folder, &changed)?;
        found.save()?;
        let arguments = jobs.iter().map(|job| job.row.run.clone().unwrap_or_default()).collect();
        Ok(Prepared { instance: instance.without_dominated(), steps, arguments, plans, log })
    }
}

/// The last step of a job whose steps have this number of tokens.
fn last_step(job: &NamedJob, tokens: usize) -> usize {
    job.row.step_count(tokens as f64).unwrap_or(1.0).ceil() as usize
}

/// Refuses what can be seen before the machine is measured: keys that make no sense, and arguments of `run` that it does not know,
/// or that a fleet gives itself.
fn check(path: &str, job: &NamedJob) -> Result<(), CliError> {
    let any = Cluster::from_name("rtx-4090").expect("the catalog has it");
    let asked = question(path, job, &any, Some("none"))?;
    let steps = last_step(job, asked.job.tokens());
    if steps > MOST_STEPS {
        return Err(bad(path, job, "steps", format!("{steps}; a job has at most {MOST_STEPS} steps here")));
    }
    let steps = steps.to_string();
    let given = job.row.run.as_deref().unwrap_or_default();
    for word in given {
        let name = word.split('=').next().unwrap_or(word);
        let why = match name {
            _ if OWN.contains(&name) => "a fleet says this itself: leave it out",
            "-" => "a job has no standard input: name a file",
            "--help" | "-h" => "it is no argument of a training",
            _ => continue,
        };
        return Err(bad(path, job, "run", format!("`{word}`; {why}")));
    }
    let own = ["trainwright", "run", "plan.toml", "--save", "checkpoints", "--steps", &steps];
    let words = own.into_iter().chain(given.iter().map(String::as_str));
    match Arguments::try_parse_from(words) {
        Ok(_) => Ok(()),
        Err(error) => Err(bad(path, job, "run", CliError::Usage(error).line())),
    }
}

/// A plan of a job.
struct PlannedChoice {
    job: usize,
    /// The file of the plan.
    file: String,
    row: Row,
}

/// What the folder has of earlier calls, and what is found now.
struct Found<'a> {
    folder: &'a str,
    names: &'a [String],
    known: Vec<Row>,
    choices: Vec<PlannedChoice>,
}

impl Found<'_> {
    fn file(&self, job: usize, cores: usize) -> String {
        format!("{}/{PLANS}/{}-{cores}.toml", self.folder.trim_end_matches('/'), self.names[job])
    }

    /// Takes what the folder has of a job on some cores; false if it has nothing.
    fn has(&mut self, path: &str, (index, job): (usize, &NamedJob), cores: usize) -> Result<bool, CliError> {
        let row = self.known.iter().find(|row| row.job == job.name && row.cores == cores).cloned();
        let Some(row) = row else { return Ok(false) };
        let file = self.file(index, cores);
        let plan = inputs::plan(&file, &[], None)?;
        let asked = question(path, job, &plan.cluster, Some("none"))?;
        if (&plan.model, &plan.job) != (&asked.model, &asked.job) {
            let what = format!("{file} was made for another model or batch: name another folder");
            return Err(bad(path, job, "name", what));
        }
        let saved = last_checkpoint(&Path::new(self.folder).join(&self.names[index]).join(CHECKPOINTS));
        let run = run_of(job);
        if saved.is_some() && row.run != run {
            let what = format!("{run}; it was begun with {}: name another folder", row.run);
            return Err(bad(path, job, "run", what));
        }
        let steps = last_step(job, plan.job.tokens());
        if let Some(saved) = saved.filter(|saved| *saved > steps) {
            let what = format!("{steps}; {saved} are done and saved: name another folder");
            return Err(bad(path, job, "steps", what));
        }
        self.choices.push(PlannedChoice { job: index, file, row });
        Ok(true)
    }

    /// Keeps a new plan, without the ops that were measured for the planner.
    fn add(
        &mut self,
        (job, name, cores): (usize, &str, usize),
        plan: &Plan,
        step: Seconds,
    ) -> Result<(), CliError> {
        let file = self.file(job, cores);
        let folder = format!("{}/{PLANS}", self.folder.trim_end_matches('/'));
        output::save_in(
            "--out",
            &folder,
            &format!("{}-{cores}.toml", self.names[job]),
            without_ops(plan).to_toml(),
        )?;
        let plan = words(plan).replace("GPU", "core");
        // Its steps follow when all rows are known.
        let row = Row { job: name.into(), cores, steps: 0, step_s: step.get(), plan, run: String::new() };
        self.known.push(row.clone());
        self.choices.push(PlannedChoice { job, file, row });
        Ok(())
    }

    fn save(&self) -> Result<(), CliError> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in &self.known {
            writer.serialize(row).expect("a row can be written to memory");
        }
        let bytes = writer.into_inner().expect("memory can be written to");
        output::save_in("--out", self.folder, TABLE, bytes)
    }
}

fn without_ops(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.cluster.node.gpu.profile = None;
    plan
}

/// The arguments of a job's `run` as one text.
fn run_of(job: &NamedJob) -> String {
    serde_json::to_string(job.row.run.as_deref().unwrap_or_default()).expect("texts can be written")
}

/// The table of an earlier call.
fn known(folder: &str) -> Result<Vec<Row>, CliError> {
    let path = Path::new(folder).join(TABLE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let path = path.display().to_string();
    let text = inputs::text(Some("--out"), &path)?;
    let rows: Result<Vec<Row>, csv::Error> =
        csv::Reader::from_reader(text.as_bytes()).deserialize().collect();
    let bad = |reason: String| CliError::NoAnswer { reason: format!("{path}: {reason}") };
    let rows = rows.map_err(|error| bad(error.to_string().replace('\n', " ")))?;
    let wrong = rows.iter().find(|row| !(row.step_s > 0.0 && row.step_s <= LONGEST_STEP) || row.cores == 0);
    match wrong {
        Some(row) => Err(bad(format!(
            "job `{}`: `step_s` is {:?} on {} cores; it should be seconds up to {LONGEST_STEP}, on some cores",
            row.job, row.step_s, row.cores
        ))),
        None => Ok(rows),
    }
}

/// This machine as the planner needs it, with a thread for each rank.
fn planning_machine(arguments: &FleetRunArguments, cores: usize) -> Result<Cluster, CliError> {
    if let Some(folder) = &arguments.profile {
        return profile_of(folder, 1);
    }
    output::remark("measuring this machine; `calibrate` does so once, and `--profile` names its folder");
    let bar = Bar::new();
    let measuring = Measuring { ranks: cores, over: Over::Threads, grid: Grid::Machine, plans: &[] };
    Ok(calibrate(measuring, &mut |done, of| bar.runs(done, of))?.cluster)
}

/// What the planner is asked; `None` if no such part of the machine can be described.
fn ask(path: &str, job: &NamedJob, machine: &Cluster, cores: usize) -> Result<Option<Question>, CliError> {
    let Some(cluster) = part(machine, cores) else { return Ok(None) };
    let question = question(path, job, &cluster, Some("none"))?;
    Ok(Some(Question { stack: runnable::stack(), ..question }))
}

/// The plan of each question that has one, with its job and cores. Jobs of a sweep ask the same.
fn plans(asked: Vec<(usize, usize, Question)>) -> Vec<(usize, usize, Plan)> {
    let bar = Bar::new();
    let mut answers: Vec<(Question, Option<Plan>)> = Vec::new();
    let count = asked.len();
    let mut planned = Vec::new();
    for (index, (job, cores, question)) in asked.into_iter().enumerate() {
        bar.show("plans of jobs", index, count);
        let plan = match answers.iter().find(|(other, _)| *other == question) {
            Some((_, plan)) => plan.clone(),
            None => {
                let found = runnable::runnable(question.clone(), DEVICES[0]).map(|ranked| ranked.plan);
                answers.push((question, found.clone()));
                found
            }
        };
        planned.extend(plan.map(|plan| (job, cores, plan)));
    }
    planned
}

/// What a step of each plan takes here while all cores do the same: its ops are measured in short runs.
fn step_times(plans: &[(usize, usize, Plan)], cores: usize) -> Result<Vec<Seconds>, CliError> {
    if plans.is_empty() {
        return Ok(Vec::new());
    }
    let mut distinct: Vec<Plan> = Vec::new();
    for (_, _, plan) in plans {
        if !distinct.contains(plan) {
            distinct.push(plan.clone());
        }
    }
    let bar = Bar::new();
    let measuring = Measuring { ranks: cores, over: Over::Threads, grid: Grid::None, plans: &distinct };
    let measured = calibrate(measuring, &mut |done, of| bar.runs(done, of))?;
    drop(bar);
    remark_refused(measured.refused.iter());
    let step = |(_, _, plan): &(usize, usize, Plan)| {
        let plan = on_machine(plan, &measured.cluster)?;
        Ok(forecast(&plan, &ClusterCosts::new(&plan.cluster))?.0.step_time)
    };
    plans.iter().map(step).collect()
}
