//! `serve`: requests through an inference engine, and what becomes of them.

use crate::arguments::{LoadArguments, ServeArguments};
use crate::error::{CliError, Outcome, refuse};
use crate::inputs::requests::{self, Trace};
use crate::render::{json, serving as page};
use crate::{inputs, output};
use csv::Writer;
use trainwright_formats::vllm_bench::BenchResult;
use trainwright_pictures::plot::{serving_png, serving_svg};
use trainwright_sim::libraries::Operands;
use trainwright_sim::serving::{Batch, Instance, Load, Request, Served, ServedRequest, ServingError};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::error::SpecError;
use trainwright_spec::model::Model;
use trainwright_spec::serving::{Engine, ServingFile, ServingPlan};
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
    let files = [("--out", &arguments.out), ("--svg", &arguments.svg), ("--png", &arguments.png)];
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let Asked { name, model, cluster, plan } = match &arguments.plan {
        Some(path) => of_file(path, arguments)?,
        None => of_arguments(arguments)?,
    };
    let bench = arguments.measured.as_deref().map(bench).transpose()?;
    let (load, measured) = match &bench {
        Some(bench) => (load_of_bench(bench), None),
        None => load(&arguments.load)?,
    };
    let load = match arguments.cached {
        0 => load,
        cached => {
            if bench.is_none() && arguments.load.trace.is_none() {
                requests::cached_are_fewer(cached, arguments.load.input)?;
            }
            load.with_cached(cached)
        }
    };
    let longest = load.requests().iter().map(|request| request.input + request.output).max();
    requests::have_positions(&name, &model, longest.unwrap_or(0))?;
    let no_answer = |reason: String| CliError::NoAnswer { reason };
    let mut instance = Instance::new(&model, &plan, &cluster, &load, arguments.max_sequences)
        .map_err(|error| no_answer(error.to_string()))?;
    let served = match instance.serve(&load) {
        Ok(served) => served,
        Err(error @ ServingError::TooLong { .. }) => {
            let memory = &instance.memory;
            let reason = error.to_string();
            output::print(&match arguments.json {
                true => json::print(&page::does_not_fit_json(&reason, memory, &cluster)),
                false => page::does_not_fit(&reason, memory, &cluster),
            })?;
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
        measured: measured.as_deref(),
        bench: bench.as_ref(),
        typical,
        step,
    };
    let title = answer.title();
    let [forecast, measured] = answer.curves();
    let forecast = forecast.unwrap_or_default();
    output::save_given("--svg", &arguments.svg, || serving_svg(&title, &forecast, measured.as_ref()))?;
    output::save_given("--png", &arguments.png, || serving_png(&title, &forecast, measured.as_ref()))?;
    if arguments.json {
        output::print(&json::print(&answer.json()))?;
    } else if !alone {
        output::print(&answer.text())?;
    }
    Ok(Outcome::Done)
}

/// What serves.
struct Asked {
    /// The model as messages name it.
    name: String,
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
}

/// Who says what a plan is.
enum Source<'a> {
    Arguments,
    /// A file of that name.
    File(&'a str),
}

impl Source<'_> {
    /// The name of a key of the file as that of an argument, where arguments say it.
    fn name(&self, key: &str) -> String {
        match self {
            Source::Arguments => format!("--{}", key.replace('_', "-")),
            Source::File(_) => key.into(),
        }
    }

    fn refuse(&self, key: &str, value: impl ToString, allowed: String) -> CliError {
        match self {
            Source::Arguments => refuse(&self.name(key), value, allowed),
            Source::File(origin) => {
                let (origin, key, value) = (origin.to_string(), key.to_string(), value.to_string());
                CliError::of_input(Some("--plan"), SpecError::BadValue { origin, key, value, allowed })
            }
        }
    }
}

/// What a file says.
fn of_file(path: &str, arguments: &ServeArguments) -> Result<Asked, CliError> {
    let argument = Some("--plan");
    let refused = |error| CliError::of_input(argument, error);
    let origin = if path == "-" { "standard input" } else { path };
    let source = Source::File(origin);
    let file = ServingFile::from_toml(&inputs::text(argument, path)?, origin).map_err(refused)?;
    let mut plan = file.plan(origin).map_err(refused)?;
    if let Some(tokens) = arguments.max_tokens {
        plan.engine.batching.max_tokens.value = tokens;
    }
    let formats = [
        ("weights", &mut plan.weights),
        ("expert_weights", &mut plan.expert_weights),
        ("cache", &mut plan.cache),
    ];
    for (key, format) in formats {
        let known = Operands::parse(format).ok_or_else(|| {
            let known = Operands::names().collect::<Vec<_>>().join(", ");
            source.refuse(key, format!("`{format}`"), format!("known formats are {known}"))
        })?;
        *format = known.name.into();
    }
    requests::is_decoder(&file.model.name, &file.model)?;
    fits_model(&plan, &file.model, &file.cluster, &source)?;
    let needed = file.instances.saturating_mul(plan.gpus());
    if needed > file.cluster.gpus() {
        let allowed = format!("they need {needed} GPUs, the cluster has {}", file.cluster.gpus());
        return Err(source.refuse("instances", file.instances, allowed));
    }
    Ok(Asked { name: file.model.name.clone(), model: file.model, cluster: file.cluster, plan })
}

/// What the arguments say.
fn of_arguments(arguments: &ServeArguments) -> Result<Asked, CliError> {
    let required = "the parser requires it without a plan";
    let name = arguments.model.clone().expect(required);
    let model = inputs::models::mapped(&name, &arguments.map)?;
    let cluster = inputs::cluster(arguments.cluster.as_deref().expect(required), &[])?;
    requests::is_decoder(&name, &model)?;
    requests::has_experts(arguments.expert_weights, &model)?;
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
        log_probs: false,
    };
    fits_model(&plan, &model, &cluster, &Source::Arguments)?;
    Ok(Asked { name, model, cluster, plan })
}

/// Whether the ranks of an instance suit the model and the cluster.
fn fits_model(plan: &ServingPlan, model: &Model, cluster: &Cluster, source: &Source) -> Result<(), CliError> {
    if plan.pipeline > model.layers() {
        let allowed = format!("the model has {} blocks", model.layers());
        return Err(source.refuse("pipeline", plan.pipeline, allowed));
    }
    let gpus = plan.tensor.saturating_mul(plan.pipeline).saturating_mul(plan.attention_data);
    if gpus > cluster.gpus() {
        let degrees =
            [("tensor", plan.tensor), ("pipeline", plan.pipeline), ("attention_data", plan.attention_data)];
        let (key, degree) = degrees.into_iter().rev().max_by_key(|(_, degree)| *degree).expect("three");
        let others: Vec<String> = degrees
            .iter()
            .filter(|(other, _)| *other != key)
            .map(|(other, _)| format!("`{}`", source.name(other)))
            .collect();
        let allowed =
            format!("with {} it needs {gpus} GPUs, the cluster has {}", others.join(" and "), cluster.gpus());
        return Err(source.refuse(key, degree, allowed));
    }
    if !plan.engine.uneven_heads && !model.shares_heads(plan.tensor) {
        return Err(source.refuse("tensor", plan.tensor, shared_heads(model)));
    }
    if plan.expert > 1 && model.fewest_experts().is_none() {
        return Err(source.refuse("expert", plan.expert, format!("{} has no experts", model.name)));
    }
    let ranks = plan.ranks_of_stage();
    if !ranks.is_multiple_of(plan.expert) {
        let allowed = format!("it must divide the {ranks} ranks of a stage");
        return Err(source.refuse("expert", plan.expert, allowed));
    }
    Ok(())
}

/// Which tensor ranks an engine has for the heads of a model.
fn shared_heads(model: &Model) -> String {
    let fits: Vec<String> =
        (1..=64).filter(|ranks| model.shares_heads(*ranks)).map(|ranks| ranks.to_string()).collect();
    format!("ranks have the same number of heads: {}", fits.join(", "))
}

/// What is asked of the instance, and what became of it in a real service where a trace says so.
pub(super) fn load(arguments: &LoadArguments) -> Result<(Load, Option<Vec<ServedRequest>>), CliError> {
    let (input, output) = (arguments.input, arguments.output);
    if let Some(path) = &arguments.trace {
        let Trace { requests, measured } = requests::trace(path)?;
        let Some(rate) = arguments.rate else { return Ok((Load::Open(requests), measured)) };
        requests::has_gaps(path, &requests)?;
        return Ok((Load::stretched(requests, rate), None));
    }
    let load = if let Some(batch) = arguments.batch {
        Load::batch(batch, input, output)
    } else if let Some(clients) = arguments.clients {
        let rounds = arguments.requests.map_or(ROUNDS, |requests| requests.div_ceil(clients));
        Load::closed(clients, rounds, input, output)
    } else {
        let rate = arguments.rate.expect("the group needs one of its arguments");
        Load::at_rate(rate, arguments.requests.unwrap_or(OPEN), input, output)
    };
    Ok((load, None))
}

/// The result of a benchmark in a file.
fn bench(path: &str) -> Result<BenchResult, CliError> {
    let text = inputs::text(Some("--measured"), path)?;
    BenchResult::read(&text).map_err(|fault| refuse("--measured", path, fault.to_string()))
}

/// What a benchmark asked: requests at a rate, as clients were free, or at once.
fn load_of_bench(bench: &BenchResult) -> Load {
    let requests = bench.lengths.iter().map(|[input, output]| Request::new(Seconds::ZERO, *input, *output));
    match (bench.rate, bench.clients) {
        (Some(rate), _) => {
            let Load::Open(mut arrivals) = Load::at_rate(rate, bench.lengths.len(), 1, 1) else {
                unreachable!("requests at a rate are open")
            };
            for (arrival, request) in arrivals.iter_mut().zip(requests) {
                *arrival = Request { arrival: arrival.arrival, ..request };
            }
            Load::Open(arrivals)
        }
        (None, Some(clients)) => Load::Closed { clients, requests: requests.collect() },
        (None, None) => Load::Open(requests.collect()),
    }
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
pub(super) fn write_requests(served: &Served, out: &mut dyn std::io::Write) -> std::io::Result<()> {
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
