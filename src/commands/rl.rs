//! `rl`: how long a step of a reinforcement-learning loop takes, where, and on how many GPUs it fits.

use crate::arguments::{RlArguments, RlMode};
use crate::error::{CliError, Outcome, refuse};
use crate::inputs::calibration;
use crate::render::{json, rl as page};
use crate::{calls, inputs, output};
use std::path::Path;
use trainwright_planner::rl::{
    RlCandidate, RlPins, RlQuestion, fewest_gpus, generation_gpus, parts, plan_rl,
};
use trainwright_sim::rl::requests_of;
use trainwright_sim::serving::Request;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::rl::{Controller, Mode, ResponseLengths, RlJob};
use trainwright_spec::serving::{Engine, ServingFile};
use trainwright_spec::stack::Stack;

/// Tokens of an answer in the mean if nothing is said and the limit is at least twice as much: assumed.
const RESPONSE: usize = 2048;

/// Runs the command.
///
/// # Errors
/// Bad input. That nothing fits is an answer.
pub fn run(arguments: &RlArguments) -> Result<Outcome, CliError> {
    let question = question(arguments)?;
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

fn question(arguments: &RlArguments) -> Result<RlQuestion, CliError> {
    let model = inputs::model(&arguments.model)?;
    inputs::requests::is_decoder(&arguments.model, &model)?;
    let cluster = inputs::cluster(&arguments.cluster, &[])?;
    if cluster.is_mixed() {
        return Err(refuse("--cluster", &arguments.cluster, "its nodes should be of one kind"));
    }
    if !cluster.node.gpu.peak.contains_key(&arguments.precision) {
        let allowed = format!("the catalog has no peak of {} in it", cluster.node.gpu.name);
        return Err(refuse("--precision", arguments.precision, allowed));
    }
    let mean = arguments.mean_response.unwrap_or((arguments.response / 2).clamp(1, RESPONSE));
    if mean > arguments.response {
        let allowed = format!("it should be at most the {} of --response", arguments.response);
        return Err(refuse("--mean-response", mean, allowed));
    }
    let samples = arguments.prompts.saturating_mul(arguments.rollouts);
    if samples > MOST_SAMPLES {
        let allowed = format!("with --rollouts it should give at most {MOST_SAMPLES} answers a step");
        return Err(refuse("--prompts", arguments.prompts, allowed));
    }
    if arguments.mini_batches > samples {
        return Err(refuse(
            "--mini-batches",
            arguments.mini_batches,
            format!("a step has {samples} answers"),
        ));
    }
    let longest = arguments.prompt + arguments.response;
    inputs::requests::have_positions(&arguments.model, &model, longest)?;
    if let Some(pack) = arguments.pack.filter(|pack| *pack < longest) {
        let allowed = format!("it should be at least {longest}: a prompt and the longest answer");
        return Err(refuse("--pack", pack, allowed));
    }
    let modes = modes(arguments);
    if let Some(gpus) = arguments.engine_gpus
        && modes.iter().all(|mode| matches!(mode, Mode::Colocated { .. }))
    {
        return Err(refuse(
            "--engine-gpus",
            gpus,
            "colocated generation has all GPUs: ask for another --mode",
        ));
    }
    if let Some(staleness) = arguments.staleness
        && !modes.iter().any(|mode| matches!(mode, Mode::Async { .. }))
    {
        return Err(refuse("--staleness", staleness, "only the mode async has it: ask for --mode async"));
    }
    check_generation(arguments.engine_gpus, &cluster)?;
    check_pins(arguments, &model, &cluster, &modes)?;
    let stack =
        Stack::from_name(&arguments.stack).map_err(|error| CliError::of_input(Some("--stack"), error))?;
    let engine =
        Engine::from_name(&arguments.engine).map_err(|error| CliError::of_input(Some("--engine"), error))?;
    let given = arguments.calibration.as_deref();
    let calibration = calibration::to_apply(given, &cluster)?;
    let responses =
        ResponseLengths { spread: arguments.spread, ..ResponseLengths::new(mean as f64, arguments.response) };
    Ok(RlQuestion {
        job: RlJob {
            algorithm: arguments.algorithm,
            prompts: arguments.prompts,
            rollouts: arguments.rollouts,
            prompt: arguments.prompt,
            responses,
            mini_batches: arguments.mini_batches,
            epochs: arguments.epochs,
            engine_log_probs: false,
        },
        modes,
        residuals: match &calibration {
            Some(calibration) => calibration.residuals.clone(),
            None => calibration::of(given, &cluster)?.residuals,
        },
        calibration,
        precision: arguments.precision,
        pack: arguments.pack.unwrap_or(longest),
        engine,
        colocated_share: arguments.memory_share,
        weights: [arguments.weights.name.into(), arguments.weights.name.into()],
        sync: arguments.sync,
        controller: Controller::from_name(&arguments.controller)
            .map_err(|error| CliError::of_input(Some("--controller"), error))?,
        pins: RlPins {
            tensor: arguments.tensor,
            pipeline: arguments.pipeline,
            expert: arguments.expert,
            engine_tensor: arguments.engine_tensor,
            generation: arguments.engine_gpus,
        },
        model,
        cluster,
        stack,
    })
}

/// How many steps older than the weights a sample may be if nothing is said: assumed.
const STALENESS: f64 = 0.5;

/// Answers of a step at most: each is simulated.
const MOST_SAMPLES: usize = 200_000;

fn modes(arguments: &RlArguments) -> Vec<Mode> {
    let usual = [RlMode::Colocated, RlMode::Disaggregated, RlMode::OneStepOff];
    let asked = if arguments.modes.is_empty() { &usual[..] } else { &arguments.modes };
    let all = [
        (RlMode::Colocated, Mode::Colocated { offload: false }),
        (RlMode::Colocated, Mode::Colocated { offload: true }),
        (RlMode::Disaggregated, Mode::Disaggregated),
        (RlMode::OneStepOff, Mode::OneStepOff),
        (RlMode::Async, Mode::Async { staleness: arguments.staleness.unwrap_or(STALENESS) }),
    ];
    all.into_iter().filter(|(mode, _)| asked.contains(mode)).map(|(_, mode)| mode).collect()
}

/// Refuses ranks that divide the GPUs in no division of them, and expert ranks that do not divide the experts.
fn check_pins(
    arguments: &RlArguments,
    model: &Model,
    cluster: &Cluster,
    modes: &[Mode],
) -> Result<(), CliError> {
    let gpus = |cluster: &Cluster| -> Vec<[usize; 2]> {
        let all = cluster.gpus();
        let mut gpus = Vec::new();
        if modes.iter().any(|mode| !mode.splits_gpus()) {
            gpus.push([all; 2]);
        }
        if modes.iter().any(|mode| mode.splits_gpus()) {
            let wanted = |gpus: &usize| arguments.engine_gpus.is_none_or(|pinned| pinned == *gpus);
            gpus.extend(generation_gpus(cluster).filter(wanted).map(|engine| [all - engine, engine]));
        }
        gpus
    };
    let divisions: Vec<[usize; 2]> = match arguments.fewest {
        true => parts(cluster).iter().flat_map(gpus).collect(),
        false => gpus(cluster),
    };
    let divides = |ranks: usize, of: usize| divisions.iter().any(|gpus| gpus[of].is_multiple_of(ranks));
    let (tensor, pipeline) = (arguments.tensor.unwrap_or(1), arguments.pipeline.unwrap_or(1));
    let training = |ranks: usize| divides(ranks, 0);
    let allowed = |what: &str, of: usize| {
        let mut counts: Vec<usize> = divisions.iter().map(|gpus| gpus[of]).collect();
        counts.sort_unstable();
        counts.dedup();
        let words: Vec<String> = counts.iter().map(ToString::to_string).collect();
        let counts = match counts.as_slice() {
            [first, .., last] if counts.len() > 8 => format!("{first} to {last}"),
            _ => words.join(" or "),
        };
        format!("it must divide the GPUs of {what}, of which there are {counts}")
    };
    if !training(tensor) {
        return Err(refuse("--tensor", tensor, allowed("training", 0)));
    }
    if !training(tensor.saturating_mul(pipeline)) {
        let times = if tensor > 1 { ", times --tensor," } else { "" };
        return Err(refuse(
            "--pipeline",
            pipeline,
            allowed("training", 0).replacen("it", &format!("it{times}"), 1),
        ));
    }
    if let Some(ranks) =
        arguments.engine_tensor.filter(|ranks| !ranks.is_power_of_two() || !divides(*ranks, 1))
    {
        return Err(refuse(
            "--engine-tensor",
            ranks,
            format!("{}, as a power of two", allowed("generation", 1)),
        ));
    }
    inputs::requests::shares_experts(arguments.expert.unwrap_or(1), model)?;
    match (arguments.expert, model.fewest_experts()) {
        (Some(ranks), Some(experts)) if !experts.is_multiple_of(ranks) => {
            Err(refuse("--expert", ranks, format!("it must divide the {experts} experts of {}", model.name)))
        }
        _ => Ok(()),
    }
}

/// Refuses GPUs of generation that no division of the cluster leaves.
fn check_generation(wanted: Option<usize>, cluster: &Cluster) -> Result<(), CliError> {
    let Some(wanted) = wanted.filter(|wanted| generation_gpus(cluster).all(|gpus| gpus != *wanted)) else {
        return Ok(());
    };
    let allowed = match cluster.nodes {
        1 => {
            let counts: Vec<String> = generation_gpus(cluster).map(|gpus| gpus.to_string()).collect();
            match counts.is_empty() {
                true => "one GPU can't be divided between training and generation".to_owned(),
                false => {
                    format!("of {} GPUs in one node generation has {}", cluster.gpus(), counts.join(" or "))
                }
            }
        }
        nodes => {
            let node = cluster.node.gpus.value;
            format!("generation has whole nodes of {node} GPUs, 1 to {} of {nodes}", nodes - 1)
        }
    };
    Err(refuse("--engine-gpus", wanted, allowed))
}
