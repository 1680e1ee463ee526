//! `fleet`: several jobs on one cluster, each with a plan, GPUs and a start.

use crate::arguments::{FleetArguments, ScheduleFiles};
use crate::error::{CliError, Outcome};
use crate::inputs;
use crate::inputs::fleet::{Fleet, fleet};
use crate::output;
use crate::render::fleet as page;
use crate::render::json;
use trainwright_fleet::check::check;
use trainwright_fleet::instance::{Choice, Instance};
use trainwright_fleet::moves::solve_with_moves;
use trainwright_fleet::observed;
use trainwright_fleet::reschedule::reschedule;
use trainwright_fleet::schedule::{Placed, Schedule};
use trainwright_fleet::uncertain::makespans;
use trainwright_fleet::{Answer, Effort, solve};
use trainwright_formats::export::{Request, exporter, write as write_plan};
use trainwright_pictures::gantt::{Gantt, gantt_png, gantt_svg};
use trainwright_spec::units::Seconds;

/// Runs the command.
///
/// # Errors
/// Bad input, and files that cannot be written.
pub fn run(arguments: &FleetArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&arguments.pictures.files(), arguments.json)?;
    let mut fleet = fleet(arguments)?;
    let effort = Effort { factor: arguments.effort, time: arguments.time_limit.map(Seconds::new) };
    let objective = arguments.objective();
    let (answer, now) = match &arguments.observed {
        None if arguments.preempt => (solve_with_moves(&fleet.instance, objective, effort)?, None),
        None => (solve(&fleet.instance, objective, effort)?, None),
        Some(path) => {
            let (answer, now) = again(&mut fleet, path, arguments)?;
            (answer, Some(now))
        }
    };
    if let Err(fault) = check(&fleet.instance, &answer.schedule) {
        panic!("a schedule breaks a rule: {fault}");
    }
    let samples = makespans(&fleet.instance, &answer.schedule, &fleet.groups);
    let changes = match arguments.what_if {
        true => changes(&fleet.instance, &answer, arguments, effort),
        false => Vec::new(),
    };
    let page = page::Page {
        fleet: &fleet,
        objective,
        answer: &answer,
        samples: &samples,
        changes: &changes,
        now,
        may_move: arguments.preempt,
    };
    if let Some(folder) = &arguments.out {
        write_plans(folder, &fleet, &answer)?;
    }
    draw(&arguments.pictures, || page.picture(), || page.html())?;
    if arguments.json {
        output::print(&json::print(&page.json()))?;
    } else if !alone {
        output::print(&page.text())?;
    }
    Ok(Outcome::Done)
}

/// Draws a schedule into the files that were asked for.
///
/// # Errors
/// Files that cannot be written.
pub fn draw(
    files: &ScheduleFiles,
    picture: impl Fn() -> Gantt,
    page: impl Fn() -> String,
) -> Result<(), CliError> {
    let [(svg, svg_file), (png, png_file), (report, report_file)] = files.files();
    output::save_given(svg, svg_file, || gantt_svg(&picture()))?;
    output::save_given(png, png_file, || gantt_png(&picture()))?;
    output::save_given(report, report_file, page)
}

/// The schedule from the last time of a log on, and this time. The fleet becomes that of the jobs that have not ended.
fn again(fleet: &mut Fleet, path: &str, arguments: &FleetArguments) -> Result<(Answer, u64), CliError> {
    let observed = observed::read(&inputs::text(Some("--observed"), path)?, &fleet.instance);
    let observed =
        observed.map_err(|reason| CliError::NoAnswer { reason: format!("--observed: {path}: {reason}") })?;
    let new = reschedule(&fleet.instance, arguments.objective(), &observed, &[])?;
    fleet.groups = new.jobs.iter().map(|job| fleet.groups[*job]).collect();
    fleet.instance = new.instance;
    fleet.plans.clear();
    for (jobs, word) in [(&new.kept, "runs on"), (&new.moved, "moves")] {
        for job in jobs {
            let plan = &mut fleet.instance.jobs[*job].choices[0].plan;
            *plan = format!("{plan} ({word})");
        }
    }
    Ok((new.answer, observed.now))
}

/// Deadlines without which the answer is sought: those with the least time left.
const DEADLINES: usize = 8;

/// The answers with one node more and one less of each kind, and without the tightest deadlines one by one, with the same choices of
/// each job.
fn changes(
    instance: &Instance,
    answer: &Answer,
    arguments: &FleetArguments,
    effort: Effort,
) -> Vec<page::Change> {
    let mut all = Vec::new();
    let answer_of = |other: &Instance| {
        let all_can = other.jobs.iter().all(|job| !job.choices.is_empty());
        all_can.then(|| solve(other, arguments.objective(), effort).ok()).flatten()
    };
    for kind in 0..instance.kinds.len() {
        for more in [true, false] {
            let mut other = instance.clone();
            let nodes = &mut other.kinds[kind].nodes;
            *nodes = if more { *nodes + 1 } else { *nodes - 1 };
            let kinds = other.kinds.clone();
            let fits = |choice: &Choice| choice.gpus <= kinds[choice.kind].nodes * kinds[choice.kind].gpus;
            other.jobs.iter_mut().for_each(|job| job.choices.retain(fits));
            let change = if more { "one more" } else { "one less" };
            let what = page::Changed::Node { change, kind: instance.kinds[kind].name.clone() };
            all.push(page::Change { what, answer: answer_of(&other) });
        }
    }
    let slack =
        |entry: &Placed| Some((instance.jobs[entry.job].deadline? as i64 - entry.end as i64, entry.job));
    let mut tight: Vec<(i64, usize)> = answer.schedule.placed.iter().filter_map(slack).collect();
    tight.sort_unstable();
    for (_, job) in tight.into_iter().take(DEADLINES) {
        let mut other = instance.clone();
        other.jobs[job].deadline = None;
        let what = page::Changed::Deadline(instance.jobs[job].name.clone());
        all.push(page::Change { what, answer: answer_of(&other) });
    }
    all
}

/// Plans, scripts, and what submits them.
fn write_plans(folder: &str, fleet: &Fleet, answer: &Answer) -> Result<(), CliError> {
    let slurm = exporter("slurm").map_err(|error| CliError::of_input(None, error))?;
    let (instance, schedule) = (&fleet.instance, &answer.schedule);
    let (mut scripts, mut faults, mut without_plan) = (Vec::new(), Vec::new(), Vec::new());
    for entry in &schedule.placed {
        let choice = entry.choice_of(instance);
        let Some(plan) = fleet.plans.get(&(entry.job, choice.kind, choice.gpus)) else {
            without_plan.push(instance.jobs[entry.job].name.as_str());
            continue;
        };
        let name = file_name(instance, entry.job);
        output::save_in("--out", folder, &format!("{name}.toml"), plan.to_toml())?;
        let exported = write_plan(&Request::new(plan), slurm);
        faults.extend(exported.faults().iter().map(|fault| format!("{name}: {fault}")));
        let is_part = choice.gpus < instance.kinds[choice.kind].gpus;
        let text = exported.files.into_iter().next().map_or(String::new(), |file| file.text);
        scripts.push((name, if is_part { of_part(&text) } else { text }));
    }
    if let Some(name) = without_plan.first() {
        let others = if scripts.is_empty() { "" } else { ": only plans are written" };
        output::remark(&format!("--out: no scripts: `{name}` has no plan of a training{others}"));
        return Ok(());
    }
    if let Some(fault) = faults.first() {
        output::remark(&format!("--out: no scripts: Megatron-LM would train something else: {fault}"));
        return Ok(());
    }
    let mut submit = String::from(
        "#!/bin/bash\n# Submits the jobs in the order of their starts; each waits for those that hold its GPUs before it.\n\
         set -euo pipefail\ncd \"$(dirname \"$0\")\"\n",
    );
    for job in schedule.order() {
        let (name, text) = &scripts[job];
        output::save_in("--out", folder, &format!("{name}.sbatch"), text)?;
        let list = |kind: &str, jobs: Vec<usize>| {
            let ids: String = jobs.iter().map(|before| format!(":$job_{before}")).collect();
            (!ids.is_empty()).then(|| format!("{kind}{ids}"))
        };
        let waits = list("afterok", instance.jobs[job].after.clone());
        let waits =
            waits.into_iter().chain(list("afterany", holders(instance, &schedule.placed[job], schedule)));
        let waits = waits.collect::<Vec<_>>().join(",");
        let dependency = if waits.is_empty() { String::new() } else { format!(" --dependency={waits}") };
        submit += &format!("job_{job}=$(sbatch --parsable{dependency} {name}.sbatch)\n");
    }
    output::save_in("--out", folder, "submit.sh", submit)
}

/// The last jobs that hold a job's GPUs before it, and all jobs of its user that end before it, where the user has a quota: then
/// jobs of the user that run at the same time do so in the schedule too, whatever they take.
fn holders(instance: &Instance, entry: &Placed, schedule: &Schedule) -> Vec<usize> {
    let mut found = Vec::new();
    if instance.quota_of(entry.job).is_some() {
        let user = |job: usize| instance.jobs[job].user;
        let before = schedule.placed.iter().filter(|other| other.end <= entry.start);
        found.extend(before.map(|other| other.job).filter(|other| user(*other) == user(entry.job)));
    }
    for node in &entry.nodes {
        for gpu in &entry.gpus {
            let holds = |other: &&Placed| {
                other.end <= entry.start
                    && other.job != entry.job
                    && other.nodes.contains(node)
                    && other.gpus.contains(gpu)
            };
            let last = schedule.placed.iter().filter(holds).max_by_key(|other| (other.end, other.job));
            found.extend(last.map(|other| other.job));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// A script for a part of a node: others run on it too, so that each needs a port of its own.
fn of_part(script: &str) -> String {
    let lines = script.lines().filter(|line| !matches!(*line, "#SBATCH --exclusive" | "#SBATCH --mem=0"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    text.replace(":29500", ":$((20000 + SLURM_JOB_ID % 10000))")
}

/// A job's name as that of a file; with its number where another job's would be the same.
fn file_name(instance: &Instance, job: usize) -> String {
    let name = plain_name(instance, job);
    let is_twice = (0..instance.jobs.len()).any(|other| other != job && plain_name(instance, other) == name);
    if is_twice { format!("{name}-{job}") } else { name }
}

/// A job's name in letters, digits, `-` and `_`.
pub fn plain_name(instance: &Instance, job: usize) -> String {
    let other = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-' && letter != '_';
    instance.jobs[job].name.replace(other, "-")
}
