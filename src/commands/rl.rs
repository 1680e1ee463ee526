//! `rl`: how long a step of a reinforcement-learning loop takes, where, and on how many GPUs it fits.

use crate::arguments::RlArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::render::{json, rl as page};
use crate::{calls, inputs, output};
use std::path::Path;
use trainwright_planner::rl::{RlCandidate, fewest_gpus, plan_rl};
use trainwright_sim::rl::requests_of;
use trainwright_sim::serving::Request;
use trainwright_spec::rl::Mode;
use trainwright_spec::serving::ServingFile;

/// Runs the command.
///
/// # Errors
/// Bad input. That nothing fits is an answer.
pub fn run(arguments: &RlArguments) -> Result<Outcome, CliError> {
    let question = inputs::rl::question(arguments, inputs::cluster(&arguments.cluster, &[])?)?;
    // Before the search, which takes a while: is there room for the answer?
    if let Some(folder) =
        arguments.out.as_deref().filter(|folder| calls::current().is_none() && is_taken(folder))
    {
        return Err(refuse("--out", folder, "a folder, or the name of a new one"));
    }
    let (fewest, verdict) = match arguments.fewest {
        true => fewest_gpus(&question, arguments.within)?,
        false => (None, plan_rl(&question, arguments.time_limit)?),
    };
    let answer =
        page::Answer { question: &question, verdict: &verdict, asks_fewest: arguments.fewest, fewest };
    let best = verdict.found.first();
    // The files first, so that a reader who closes standard output early does not lose them.
    let written = match (&arguments.out, best) {
        (Some(folder), Some(best)) => write_plans(folder, best),
        _ => Ok(()),
    };
    output::print(&match (arguments.json, best) {
        (true, _) => json::print(&answer.json()),
        (false, best) => {
            let out = arguments.out.as_deref().filter(|_| written.is_ok());
            answer.text() + &next_steps(out, best)
        }
    })?;
    written?;
    Ok(if verdict.found.is_empty() { Outcome::NothingFits } else { Outcome::Done })
}

fn is_taken(folder: &str) -> bool {
    folder == "-" || Path::new(folder).exists() && !Path::new(folder).is_dir()
}

/// Names of the files with plans.
const TRAINING: &str = "training.toml";
const CRITIC: &str = "critic.toml";
const GENERATION: &str = "generation.toml";
const REQUESTS: &str = "requests.csv";

/// The plans of a loop as files. Of those that an earlier loop left, what this one lacks goes.
fn write_plans(folder: &str, best: &RlCandidate) -> Result<(), CliError> {
    let RlCandidate { plan, forecast } = best;
    let generation =
        ServingFile::new(forecast.generation.replicas, &plan.engine, &plan.actor.model, &plan.generation);
    let mut files = vec![(TRAINING, plan.actor.to_short_toml()), (GENERATION, generation.to_toml())];
    files.extend(plan.critic.as_ref().map(|critic| (CRITIC, critic.to_short_toml())));
    if has_requests(plan.mode) {
        files.push((REQUESTS, requests_csv(&requests_of(plan, forecast.generation.last))));
    }
    output::save_folder("--out", folder, &files)?;
    let written = |name: &str| files.iter().any(|(written, _)| *written == name);
    if calls::current().is_none() {
        for stale in [CRITIC, REQUESTS].into_iter().filter(|name| !written(name)) {
            let _ = std::fs::remove_file(Path::new(folder).join(stale));
        }
    }
    Ok(())
}

/// Whether generation is that of a step's answers: an asynchronous one never begins nor ends.
fn has_requests(mode: Mode) -> bool {
    !matches!(mode, Mode::Async { .. })
}

/// Requests as `serve --trace` reads them.
fn requests_csv(requests: &[Request]) -> String {
    let row = |request: &Request| {
        format!("{},{},{},{}\n", request.arrival.get(), request.input, request.output, request.cached)
    };
    let rows: String = requests.iter().map(row).collect();
    format!("arrival_s,input_tokens,output_tokens,cached_tokens\n{rows}")
}

/// What the files are for.
fn next_steps(folder: Option<&str>, best: Option<&RlCandidate>) -> String {
    let (Some(folder), Some(best)) = (folder, best) else { return String::new() };
    let folder = folder.trim_end_matches('/');
    let serve = match has_requests(best.plan.mode) {
        true => format!("trainwright serve --plan {folder}/{GENERATION} --trace {folder}/{REQUESTS}"),
        false => format!("trainwright serve --plan {folder}/{GENERATION} --batch N"),
    };
    format!(
        "\nThe fastest loop's plans are in {folder}; `trainwright simulate {folder}/{TRAINING}` shows an update, and\n\
         `{serve}` what an instance of the engine does.\n"
    )
}
