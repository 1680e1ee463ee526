//! `serve-bench`: requests through the scheduler of an inference engine, whose steps run on ranks of this machine.

use super::serve::{load, write_requests};
use crate::arguments::ServeBenchArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::rank_serving::{Calibration, RankSteps, calibrate, processor_clock, wall_clock};
use crate::render::{generation, json, serving_run as page};
use crate::{inputs, output};
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{
    BatchRunner, GenerationMemory, ModelFolder, PositionLimit, Remark, RunError, Serving, Settings, Start,
    serve_batches, tensor_and_pipeline_ranks,
};
use trainwright_sim::serving::{Limits, Load, Policy, Served, ServingError, policy, serve};
use trainwright_spec::model::Model;
use trainwright_spec::serving::Engine;
use trainwright_spec::units::Seconds;
use trainwright_timeline::comparison::Pair;

/// How often a calibration measures each step in a round.
const REPEATS: usize = 3;

/// Runs the command.
///
/// # Errors
/// Bad input, too little memory, a rank that stops; a sequence that does not fit the cache is an answer.
pub fn run(arguments: &ServeBenchArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let (model, limit, start) = model(arguments)?;
    // The ranks have no keys and values of a prompt that they did not compute.
    let load = load(&arguments.load)?.0.with_cached(0);
    let scheduling = Scheduling::new(arguments, &load)?;
    if let (Some(limit), Some(_)) = (&limit, &arguments.checkpoint) {
        limit.check(scheduling.longest).map_err(RunError::from)?;
    }
    let (tensor, pipeline) = (arguments.tensor.get(), arguments.pipeline.get());
    if pipeline > model.layers() {
        return Err(refuse("--pipeline", pipeline, format!("the model has {} blocks", model.layers())));
    }
    let plan = tensor_and_pipeline_ranks(model, tensor, pipeline);
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = arguments.threads.unwrap_or_else(cores);
    if arguments.processor_time && (tensor * pipeline, threads.get()) != (1, 1) {
        let allowed = "threads that wait for each other use a processor too: give one rank and `--threads 1`";
        return Err(refuse("--processor-time", "given", allowed));
    }
    let settings = Settings {
        start,
        position_limit: limit,
        seed: arguments.seed,
        serving: Some(scheduling.serving(arguments)),
        remark: Remark(output::remark),
        threads,
        ..Settings::default()
    };
    if let Err(ServingError::TooLong { tokens, capacity }) = scheduling.check(&load) {
        let reason = ServingError::TooLong { tokens, capacity };
        let text = format!("Does not fit: {reason}; `--cache-tokens` says how much room it has.\n");
        output::print(&match arguments.json {
            true => {
                json::print(&serde_json::json!({ "verdict": "does not fit", "reason": reason.to_string() }))
            }
            false => text,
        })?;
        return Ok(Outcome::NothingFits);
    }
    let mut memory = None;
    let mut state = |needed: &GenerationMemory| {
        output::remark(&generation::memory(&plan, needed, arguments.weights));
        memory = Some(*needed);
    };
    let rounds = if arguments.validate { arguments.rounds.get() } else { 1 };
    let ran = serve_batches(&plan, &settings, &mut state, |ranks| {
        (0..rounds).map(|_| scheduling.round(ranks, arguments, &load, plan.model.vocab)).collect()
    });
    let ran: Vec<page::Round> = ran?;
    if let Some(path) = &arguments.out {
        output::write("--out", path, |out| write_requests(&ran[0].served, out))?;
    }
    let answer = page::Answer {
        plan: &plan,
        engine: &arguments.engine,
        policy: scheduling.policy.name(),
        weights: arguments.weights,
        memory: memory.expect("it was stated before"),
        capacity: scheduling.capacity,
        limits: scheduling.limits,
        rounds: &ran,
    };
    if arguments.json {
        output::print(&json::print(&answer.json()))?;
    } else if !alone {
        output::print(&answer.text())?;
    }
    Ok(Outcome::Done)
}

/// The model, the most tokens of a sequence that its configuration states, and where its weights are from.
fn model(arguments: &ServeBenchArguments) -> Result<(Model, Option<PositionLimit>, Start), CliError> {
    if let Some(name) = &arguments.model {
        let model = inputs::model(name)?;
        inputs::requests::is_decoder(name, &model)?;
        let limit = inputs::configuration::position_limit(&model);
        return Ok((model, limit, Start::Anew));
    }
    let path = arguments.checkpoint.as_deref().expect("the group needs one of its arguments");
    let folder = ModelFolder::open(Path::new(path), Remark(output::remark))?;
    let Some(model) = folder.model else {
        return Err(refuse("--checkpoint", path, "it has no config.json, which says what its model is"));
    };
    Ok((model, folder.limit, Start::Weights(folder.folder)))
}

/// How steps are made.
struct Scheduling {
    policy: &'static dyn Policy,
    limits: Limits,
    /// Tokens that the cache has room for.
    capacity: usize,
    /// The most tokens of a sequence.
    longest: usize,
    /// The most tokens of a step.
    tokens: usize,
}

impl Scheduling {
    fn new(arguments: &ServeBenchArguments, load: &Load) -> Result<Self, CliError> {
        let engine = Engine::from_name(&arguments.engine);
        let batching = engine.map_err(|error| CliError::of_input(Some("--engine"), error))?.batching;
        let policy = policy(&batching.policy).expect("the engine names a policy of the registry");
        let requests = load.requests();
        let block = batching.block.value;
        let at_once = match load {
            Load::Open(requests) => requests.len(),
            Load::Closed { clients, requests } => requests.len().min(*clients),
        };
        let sequences = arguments.max_sequences.unwrap_or(batching.max_sequences.value).min(at_once);
        let budget = arguments.max_tokens.unwrap_or(batching.max_tokens.value);
        let longest = requests.iter().map(|request| request.input + request.output).max().unwrap_or(1);
        let all = sequences.saturating_mul(longest.next_multiple_of(block));
        let capacity = arguments.cache_tokens.unwrap_or(all);
        let tokens = if policy.keeps_budget() { budget.min(all) } else { all }.min(capacity).max(1);
        let limits = Limits { sequences, tokens: budget, block };
        Ok(Self { policy, limits, capacity, longest, tokens })
    }

    /// What the ranks need for it.
    fn serving(&self, arguments: &ServeBenchArguments) -> Serving {
        let sizes = [self.longest, self.tokens, self.limits.sequences, self.capacity];
        Serving::new(sizes, arguments.weights)
    }

    /// Refuses a sequence that does not fit the cache alone.
    fn check(&self, load: &Load) -> Result<(), ServingError> {
        let block = self.limits.block;
        let blocks = load.requests().iter().map(|request| (request.input + request.output).div_ceil(block));
        let tokens = blocks.max().unwrap_or(0) * block;
        match tokens <= self.capacity {
            true => Ok(()),
            false => Err(ServingError::TooLong { tokens, capacity: self.capacity }),
        }
    }

    /// Serves the load on ranks that keep no sequence; before that a validation measures steps and forecasts.
    fn round(
        &self,
        ranks: &mut BatchRunner,
        arguments: &ServeBenchArguments,
        load: &Load,
        vocabulary: usize,
    ) -> Result<page::Round, CliError> {
        let mut clock: Box<dyn FnMut() -> Seconds> = match arguments.processor_time {
            true => Box::new(processor_clock()?),
            false => Box::new(wall_clock()),
        };
        let calibration = Calibration {
            tokens: self.tokens,
            sequences: self.limits.sequences,
            longest: self.longest,
            cached: self.capacity,
            repeats: REPEATS,
            vocabulary,
        };
        calibration.warm_up(ranks)?;
        let mut fitted =
            arguments.validate.then(|| calibrate(ranks, &mut *clock, &calibration)).transpose()?;
        let forecast =
            fitted.as_mut().map(|fitted| serve(fitted, self.policy, self.limits, self.capacity, load));
        let forecast = forecast.transpose()?;
        let prompts = prompts(load, arguments.seed, vocabulary);
        let mut steps = RankSteps::new(ranks, &mut *clock, prompts);
        let served: Served = serve(&mut steps, self.policy, self.limits, self.capacity, load)?;
        let pairs = fitted.iter().flat_map(|fitted| {
            steps.steps.iter().map(|step| Pair { forecast: fitted.time(&step.shape), measured: step.time })
        });
        let steps_compared = pairs.collect();
        steps.end()?;
        Ok(page::Round { served, forecast, steps: steps_compared })
    }
}

/// Random tokens for each prompt.
fn prompts(load: &Load, seed: u64, vocabulary: usize) -> Vec<Vec<u32>> {
    let token = |sequence: usize, position: usize| {
        let number = mixed(seed ^ mixed((sequence as u64) << 32 | position as u64));
        (number % vocabulary as u64) as u32
    };
    let requests = load.requests().iter().enumerate();
    requests
        .map(|(sequence, request)| (0..request.input).map(|position| token(sequence, position)).collect())
        .collect()
}

/// SplitMix64. Source: Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators, figure 17.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
