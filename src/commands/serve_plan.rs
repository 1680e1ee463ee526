//! `serve-plan`: the instances that serve a rate of requests within limits of latency.

use crate::arguments::ServePlanArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::progress::Bar;
use crate::render::{json, serving_plan as page};
use crate::{inputs, output};
use trainwright_formats::serving_commands::{Command, Duty, Instance, NotExpressible, engines};
use trainwright_pictures::plot::{chart_png, chart_svg};
use trainwright_planner::serving::{Kind, Pool, Role, plan_serving};
use trainwright_spec::units::Seconds;

/// Runs the command.
///
/// # Errors
/// Bad input. That no instances keep the limits is an answer.
pub fn run(arguments: &ServePlanArguments) -> Result<Outcome, CliError> {
    let files = [("--svg", &arguments.svg), ("--png", &arguments.png)];
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let clusters = arguments.clusters.iter().map(|name| inputs::cluster(name, &[]));
    let question = inputs::serving::question(arguments, &clusters.collect::<Result<Vec<_>, _>>()?)?;
    if arguments.commands {
        have_commands(arguments)?;
    }
    let draws = arguments.svg.is_some() || arguments.png.is_some();
    let bar = Bar::new();
    let verdict = plan_serving(&question, draws, arguments.time_limit.map(Seconds::new), &|done, all| {
        bar.show("options", done, all)
    });
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
