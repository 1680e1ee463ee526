//! `fleet-run`: several trainings on this machine's cores, as scheduled, beside their forecast.

use super::fleet::{draw, plain_name};
use super::other_programs::Ticks;
use crate::arguments::FleetRunArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::fleet_run::{CHECKPOINTS, LOG, Prepared, Processes, Task, claim, jobs, prepare, written};
use crate::output;
use crate::render::{fleet_run as page, json};
use std::path::Path;
use trainwright_executor::last_checkpoint;
use trainwright_fleet::execute::{carry_out, job_runs, simulate};
use trainwright_fleet::{Effort, observed, solve};

/// Runs the command.
///
/// # Errors
/// Bad input, a folder that cannot be used, and processes that cannot be started. A job that fails is an answer.
pub fn run(arguments: &FleetRunArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&arguments.pictures.files(), arguments.json)?;
    check_pictures(arguments)?;
    let jobs = jobs(arguments)?;
    let _claim = claim(&arguments.out)?;
    // Before it is mended, if it has to be.
    let logged = written(&Path::new(&arguments.out).join(LOG));
    let prepared = prepare(arguments, jobs)?;
    let (instance, objective) = (&prepared.instance, arguments.objective());
    check_log(arguments, &prepared)?;
    let mut log = prepared.log.clone();
    let answer = solve(instance, objective, Effort::default())?;
    let expected = simulate(instance, objective, &answer.schedule);
    let plan_of = |job: usize, cores: usize| {
        let (file, step) = &prepared.plans[&(job, cores)];
        let every = (arguments.save_interval as f64 / step.get()).round().clamp(1.0, 1e9);
        (file.clone(), every as usize)
    };
    let tasks = tasks(arguments, &prepared, &log);
    let mut processes = Processes::new(&arguments.out, tasks, (last_time(&log), logged), &plan_of)?;
    let began = Ticks::now();
    let carried =
        carry_out((instance, objective), &answer.schedule, arguments.retries, &mut log, &mut processes)?;
    drop(processes);
    let has_worked = log != prepared.log;
    let others =
        began.zip(Ticks::now()).and_then(|(began, now)| began.others_until(now)).filter(|_| has_worked);
    let page = page::Page {
        prepared: &prepared,
        objective,
        scheduled: answer.schedule.makespan(),
        is_proved: answer.is_proved(),
        expected: &expected,
        measured: &job_runs(&log, instance),
        carried: &carried,
        others,
    };
    draw(&arguments.pictures, || page.picture(), || page.html())?;
    if arguments.json {
        output::print(&json::print(&page.json()))?;
    } else if !alone {
        output::print(&page.text())?;
    }
    Ok(match (carried.is_interrupted, carried.failed.is_empty()) {
        (true, _) => Outcome::Interrupted,
        (false, false) => Outcome::Failure,
        (false, true) => Outcome::Done,
    })
}

/// Refuses pictures in the place of the file of jobs or of the log.
fn check_pictures(arguments: &FleetRunArguments) -> Result<(), CliError> {
    let of = |path: &str| std::fs::canonicalize(path).ok();
    let log = Path::new(&arguments.out).join(LOG).display().to_string();
    let taken = [of(&arguments.jobs), of(&log)];
    for (argument, path) in arguments.pictures.files() {
        if let Some(path) =
            path.as_ref().filter(|path| of(path).is_some_and(|path| taken.contains(&Some(path))))
        {
            return Err(refuse(argument, path, "this file is the fleet's own: name another"));
        }
    }
    Ok(())
}

/// Refuses a log that is none of these jobs.
fn check_log(arguments: &FleetRunArguments, prepared: &Prepared) -> Result<(), CliError> {
    if prepared.log.is_empty() {
        return Ok(());
    }
    let path = Path::new(&arguments.out).join(LOG).display().to_string();
    let known = observed::read(&prepared.log, &prepared.instance);
    known.map(drop).map_err(|reason| CliError::NoAnswer { reason: format!("{path}: {reason}") })
}

/// The time of a log's last line, in seconds.
fn last_time(log: &str) -> f64 {
    let last = log.lines().next_back().and_then(|line| line.split(',').next());
    last.and_then(|time| time.parse().ok()).unwrap_or(0.0)
}

fn tasks(arguments: &FleetRunArguments, prepared: &Prepared, log: &str) -> Vec<Task> {
    let instance = &prepared.instance;
    let before = job_runs(log, instance);
    let task = |job: usize| Task {
        name: instance.jobs[job].name.clone(),
        folder: Path::new(&arguments.out).join(plain_name(instance, job)),
        steps: prepared.steps[job],
        arguments: prepared.arguments[job].clone(),
        attempts: before.iter().filter(|piece| piece.job == job).count(),
    };
    // Where the log was lost, checkpoints are as good as earlier attempts.
    let with_saved = |task: Task| Task {
        attempts: task.attempts.max(usize::from(last_checkpoint(&task.folder.join(CHECKPOINTS)).is_some())),
        ..task
    };
    (0..instance.jobs.len()).map(task).map(with_saved).collect()
}
