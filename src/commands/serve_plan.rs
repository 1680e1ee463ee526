//! `serve-plan`: the instances that serve a rate of requests within limits of latency.

use crate::arguments::{Least, ServePlanArguments};
use crate::error::{CliError, Outcome, refuse};
use crate::inputs::requests;
use crate::progress::Bar;
use crate::render::{json, serving_plan as page};
use crate::{inputs, output};
use std::collections::BTreeSet;
use trainwright_formats::serving_commands::{Command, Duty, Instance, NotExpressible, engines};
use trainwright_pictures::plot::{chart_png, chart_svg};
use trainwright_planner::serving::{
    Kind, LatencyLimits, Objective, Pool, Role, ServedFormats, ServingQuestion, Traffic, plan_serving,
};
use trainwright_spec::serving::Engine;
use trainwright_whatif::price::list_price;

/// Runs the command.
///
/// # Errors
/// Bad input. That no instances keep the limits is an answer.
pub fn run(arguments: &ServePlanArguments) -> Result<Outcome, CliError> {
    let files = [("--svg", &arguments.svg), ("--png", &arguments.png)];
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let question = question(arguments)?;
    if arguments.commands {
        have_commands(arguments)?;
    }
    let draws = arguments.svg.is_some() || arguments.png.is_some();
    let bar = Bar::new();
    let verdict = plan_serving(&question, draws, &|done, all| bar.show("options", done, all));
    drop(bar);
    let commands = match arguments.commands {
        true => commands(arguments, &question.kinds, &verdict.pools)?,
        false => Vec::new(),
    };
    let answer = page::Answer { question: &question, arguments, verdict: &verdict, commands: &commands };
    output::save_given("--svg", &arguments.svg, || chart_svg(&answer.chart()))?;
    output::save_given("--png", &arguments.png, || chart_png(&answer.chart()))?;
    if arguments.json {
        output::print(&json::print(&answer.json()))?;
    } else if !alone {
        output::print(&answer.text())?;
    }
    Ok(if verdict.pools.is_empty() { Outcome::NothingFits } else { Outcome::Done })
}

/// Refuses engines without a command line, before anything is planned.
fn have_commands(arguments: &ServePlanArguments) -> Result<(), CliError> {
    let known: Vec<&str> = engines().collect();
    match arguments.engines.iter().find(|engine| !known.contains(&engine.as_str())) {
        None => Ok(()),
        Some(engine) => {
            let allowed = format!("with `--commands` it should be {}", known.join(", "));
            Err(refuse("--engine", engine, allowed))
        }
    }
}

/// What starts an instance of each pool.
fn commands(
    arguments: &ServePlanArguments,
    kinds: &[Kind],
    pools: &[Pool],
) -> Result<Vec<Command>, CliError> {
    let model = arguments.checkpoint.as_deref().unwrap_or(&arguments.model);
    let command = |pool: &Pool| {
        let duty = match pool.option.role {
            Role::Whole => Duty::Whole,
            Role::Prefill => Duty::Prefill,
            Role::Decode => Duty::Decode,
        };
        let plan = &pool.option.plan;
        let nodes = plan.gpus().div_ceil(kinds[pool.option.kind].cluster.node.gpus.value);
        let refused = |fault: NotExpressible| refuse("--commands", &plan.engine.name, fault.to_string());
        let mut command = Instance { model, plan, duty, nodes }.command().map_err(refused)?;
        if arguments.checkpoint.is_none() {
            command.remarks.push("--checkpoint names the weights: on Hugging Face, or a folder".into());
        }
        Ok(command)
    };
    pools.iter().map(command).collect()
}

/// The question that the arguments ask.
fn question(arguments: &ServePlanArguments) -> Result<ServingQuestion, CliError> {
    let model = inputs::model(&arguments.model)?;
    requests::is_decoder(&arguments.model, &model)?;
    requests::has_experts(arguments.expert_weights, &model)?;
    let kinds: Vec<Kind> =
        arguments.clusters.iter().map(|name| kind(arguments, name)).collect::<Result<_, CliError>>()?;
    let engine =
        |name: &String| Engine::from_name(name).map_err(|error| CliError::of_input(Some("--engine"), error));
    let formats = arguments.weights.iter().map(|weights| ServedFormats {
        weights: weights.name.into(),
        expert_weights: arguments.expert_weights.unwrap_or(*weights).name.into(),
        cache: arguments.cache.name.into(),
    });
    let mut formats: Vec<ServedFormats> = formats.collect();
    let mut seen = BTreeSet::new();
    formats.retain(|formats| seen.insert(formats.weights.clone()));
    let traffic = match &arguments.trace {
        Some(path) => {
            let requests = requests::trace(path)?.requests;
            requests::has_gaps(path, &requests)?;
            Traffic::Trace(requests)
        }
        None => {
            let (input, output, cached) = (arguments.input, arguments.output, arguments.cached);
            requests::cached_are_fewer(cached, input)?;
            Traffic::Alike { input, output, cached }
        }
    };
    let longest = match &traffic {
        Traffic::Trace(requests) => requests.iter().map(|request| request.input + request.output).max(),
        Traffic::Alike { input, output, .. } => Some(input + output),
    };
    requests::have_positions(&arguments.model, &model, longest.unwrap_or(0))?;
    Ok(ServingQuestion {
        model,
        kinds,
        engines: arguments.engines.iter().map(engine).collect::<Result<_, CliError>>()?,
        formats,
        traffic,
        rate: arguments.rate,
        limits: LatencyLimits { ttft: arguments.ttft, tpot: arguments.tpot, part: arguments.percentile },
        apart: arguments.apart,
        objective: match arguments.least {
            Least::Gpus => Objective::Gpus,
            Least::Cost => Objective::Cost,
        },
    })
}

/// Nodes of a kind with their price.
fn kind(arguments: &ServePlanArguments, name: &str) -> Result<Kind, CliError> {
    let cluster = inputs::cluster(name, &[])?;
    let listed = || list_price(&cluster).map(|price| price.per_gpu.get());
    let price = arguments.price.or_else(listed);
    if price.is_none() && arguments.least == Least::Cost {
        let allowed = format!("no price list of the catalog has {}: give `--price`", cluster.node.gpu.name);
        return Err(refuse("--least", "cost", allowed));
    }
    Ok(Kind { cluster, price })
}
