//! `serve`: requests through an inference engine, and what becomes of them.

use crate::arguments::ServeArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::render::{json, serving as page};
use crate::{inputs, output};
use csv::{ReaderBuilder, Trim, Writer};
use serde::Deserialize;
use trainwright_sim::serving::{Batch, Instance, Load, Request, Served, ServingError};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::serving::{Engine, ServingPlan};
use trainwright_spec::units::Seconds;

/// Requests of a client, if the arguments do not say how many.
const ROUNDS: usize = 10;
/// Requests at a rate, likewise.
const OPEN: usize = 1000;

/// Runs the command.
///
/// # Errors
/// Bad input; weights or a sequence that do not fit are an answer.
pub fn run(arguments: &ServeArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let model = inputs::model(&arguments.model)?;
    let cluster = inputs::cluster(&arguments.cluster, &[])?;
    let plan = plan(arguments, &model, &cluster)?;
    let load = load(arguments)?;
    let no_answer = |reason: String| CliError::NoAnswer { reason };
    let mut instance = Instance::new(&model, &plan, &cluster, &load, arguments.max_sequences)
        .map_err(|error| no_answer(error.to_string()))?;
    let served = match instance.serve(&load) {
        Ok(served) => served,
        Err(error @ ServingError::TooLong { .. }) => {
            let memory = &instance.memory;
            output::print(&page::does_not_fit(&error.to_string(), memory, &cluster))?;
            return Ok(Outcome::NothingFits);
        }
        Err(error) => return Err(no_answer(error.to_string())),
    };
    let typical = typical(&served, instance.limits.sequences);
    let step = instance.steps.step(&typical).map_err(|error| no_answer(error.to_string()))?;
    if let Some(path) = &arguments.out {
        output::write("--out", path, |out| write_requests(&served, out))?;
    }
    let answer = page::Answer {
        model: &model,
        cluster: &cluster,
        instance: &instance,
        served: &served,
        typical,
        step,
    };
    if arguments.json {
        output::print(&json::print(&answer.json()))?;
    } else if !alone {
        output::print(&answer.text())?;
    }
    Ok(Outcome::Done)
}

/// The plan that the arguments say.
fn plan(arguments: &ServeArguments, model: &Model, cluster: &Cluster) -> Result<ServingPlan, CliError> {
    let mut engine =
        Engine::from_name(&arguments.engine).map_err(|error| CliError::of_input(Some("--engine"), error))?;
    if let Some(tokens) = arguments.max_tokens {
        engine.batching.max_tokens.value = tokens;
    }
    let experts = arguments.expert_weights.unwrap_or(arguments.weights);
    let plan = ServingPlan {
        engine,
        tensor: arguments.tensor,
        pipeline: arguments.pipeline,
        expert: arguments.expert,
        attention_data: arguments.attention_data,
        weights: arguments.weights.name.into(),
        expert_weights: experts.name.into(),
        cache: arguments.cache.name.into(),
    };
    let gpus = arguments.tensor.saturating_mul(arguments.pipeline).saturating_mul(arguments.attention_data);
    if gpus > cluster.gpus() {
        let allowed = format!(
            "with `--pipeline` and `--attention-data` it needs {gpus} GPUs, the cluster has {}",
            cluster.gpus()
        );
        return Err(refuse("--tensor", arguments.tensor, allowed));
    }
    if arguments.pipeline > model.layers() {
        return Err(refuse(
            "--pipeline",
            arguments.pipeline,
            format!("the model has {} blocks", model.layers()),
        ));
    }
    let ranks = plan.ranks_of_stage();
    if !ranks.is_multiple_of(plan.expert) {
        let allowed = format!("it must divide the {ranks} ranks of a stage");
        return Err(refuse("--expert", plan.expert, allowed));
    }
    if model.decodes() {
        return Err(refuse(
            "--model",
            &arguments.model,
            "an encoder-decoder is not served yet: give a decoder",
        ));
    }
    Ok(plan)
}

/// What is asked of the instance.
fn load(arguments: &ServeArguments) -> Result<Load, CliError> {
    let (input, output) = (arguments.input, arguments.output);
    if let Some(path) = &arguments.trace {
        return trace(path);
    }
    if let Some(batch) = arguments.batch {
        return Ok(Load::batch(batch, input, output));
    }
    if let Some(clients) = arguments.clients {
        let rounds = arguments.requests.map_or(ROUNDS, |requests| requests.div_ceil(clients));
        return Ok(Load::closed(clients, rounds, input, output));
    }
    let rate = arguments.rate.expect("the group needs one of its arguments");
    Ok(Load::at_rate(rate, arguments.requests.unwrap_or(OPEN), input, output))
}

/// A row of a trace.
#[derive(Debug, Deserialize)]
struct Row {
    arrival_s: f64,
    input_tokens: usize,
    output_tokens: usize,
}

/// The requests of a file, in the order of their arrival.
fn trace(path: &str) -> Result<Load, CliError> {
    let text = inputs::text(Some("--trace"), path)?;
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let mut requests = Vec::new();
    for (index, row) in reader.deserialize::<Row>().enumerate() {
        let fault = |what: String| refuse("--trace", path, format!("line {}: {what}", index + 2));
        let row = row.map_err(|error| {
            let what = error.to_string();
            fault(format!("arrival_s, input_tokens and output_tokens should be numbers ({what})"))
        })?;
        if !(0.0..=1e9).contains(&row.arrival_s) {
            return Err(fault(format!("`arrival_s` is {}, it should be from 0 to 1e9", row.arrival_s)));
        }
        if row.input_tokens == 0
            || row.output_tokens == 0
            || row.input_tokens.max(row.output_tokens) > 1 << 32
        {
            return Err(fault("`input_tokens` and `output_tokens` should be from 1 to 2^32".into()));
        }
        let arrival = Seconds::new(row.arrival_s);
        requests.push(Request { arrival, input: row.input_tokens, output: row.output_tokens });
    }
    if requests.is_empty() {
        return Err(refuse("--trace", path, "it has no request"));
    }
    requests.sort_by(|a, b| a.arrival.get().total_cmp(&b.arrival.get()));
    Ok(Load::Open(requests))
}

/// A step as most are: all that run at once compute a token each, in the middle of their answers.
fn typical(served: &Served, most: usize) -> Batch {
    let decodes = served.mean_running().clamp(1, most);
    let count = served.requests.len().max(1);
    let sum = |of: fn(&trainwright_sim::serving::ServedRequest) -> usize| {
        served.requests.iter().map(of).sum::<usize>()
    };
    let history = sum(|request| request.input + request.output / 2) / count;
    Batch { decodes, history, sampled: decodes, ..Batch::default() }
}

/// Writes a row for each request.
fn write_requests(served: &Served, out: &mut dyn std::io::Write) -> std::io::Result<()> {
    let mut writer = Writer::from_writer(out);
    let headers =
        ["arrival_s", "input_tokens", "output_tokens", "first_token_s", "last_token_s", "ttft_ms", "tpot_ms"];
    writer.write_record(headers)?;
    for request in &served.requests {
        let seconds = |time: Seconds| format!("{:.6}", time.get());
        let tpot = request.tpot().map(|time| format!("{:.4}", 1e3 * time.get())).unwrap_or_default();
        writer.write_record([
            seconds(request.arrival),
            request.input.to_string(),
            request.output.to_string(),
            seconds(request.first),
            seconds(request.last),
            format!("{:.4}", 1e3 * request.ttft().get()),
            tpot,
        ])?;
    }
    writer.flush()
}
