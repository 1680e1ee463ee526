//! The question of the arguments of `rl`.

use super::{calibration, requests};
use crate::arguments::{RlArguments, RlMode};
use crate::error::{CliError, refuse};
use trainwright_planner::rl::{RlPins, RlQuestion, generation_gpus, parts};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::rl::{Controller, Mode, ResponseLengths, RlJob};
use trainwright_spec::serving::Engine;
use trainwright_spec::stack::Stack;

/// Tokens of an answer in the mean if nothing is said and the limit is at least twice as much: assumed.
const RESPONSE: usize = 2048;
/// How many steps older than the weights a sample may be if nothing is said: assumed.
const STALENESS: f64 = 0.5;
/// Answers of a step at most: each is simulated.
const MOST_SAMPLES: usize = 200_000;

/// The question that the arguments ask, on a cluster.
///
/// # Errors
/// The first argument that is invalid, alone or with the others.
pub fn question(arguments: &RlArguments, cluster: Cluster) -> Result<RlQuestion, CliError> {
    let model = super::models::mapped(&arguments.model, &arguments.map)?;
    requests::is_decoder(&arguments.model, &model)?;
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
    requests::have_positions(&arguments.model, &model, longest)?;
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
    requests::shares_experts(arguments.expert.unwrap_or(1), model)?;
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
