//! The same scheduler on ranks and in a simulation makes the same decisions, and batches change no answer.

use super::ranks::Runner;
use super::{Calibration, RankSteps, calibrate};
use crate::error::CliError;
use std::num::NonZeroUsize;
use trainwright_executor::{
    Batch, ChosenToken, Generation, Serving, Settings, Start, WeightFormat, generate, serve_batches,
    tensor_and_pipeline_ranks,
};
use trainwright_sim::serving::{
    Limits, Load, POLICIES, Policy, Queue, Served, StepSource, Work, policy, serve,
};
use trainwright_spec::model::Model;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::units::Seconds;

const VOCABULARY: usize = 67;
/// The most tokens of a sequence.
const LONGEST: usize = 30;

fn model() -> Model {
    let config = r#"{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 67, "hidden_act": "silu",
        "tie_word_embeddings": false, "max_position_embeddings": 64}"#;
    from_hugging_face(config, "config.json").unwrap()
}

/// Random numbers below a bound, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Requests of 1 to 20 tokens with answers of 1 to 10, some of them at the same time.
fn trace(seed: u64, count: usize) -> Load {
    let mut random = Random(seed);
    let Load::Open(mut requests) = Load::batch(count, 1, 1) else { unreachable!("a batch is open") };
    let mut arrival = 0.0;
    for request in &mut requests {
        arrival += 0.01 * random.below(4) as f64;
        (request.input, request.output) = (1 + random.below(20), 1 + random.below(10));
        request.arrival = Seconds::new(arrival);
    }
    Load::Open(requests)
}

fn prompts(load: &Load, seed: u64) -> Vec<Vec<u32>> {
    let mut random = Random(seed + 1);
    let requests = load.requests().iter();
    requests.map(|request| (0..request.input).map(|_| random.below(VOCABULARY) as u32).collect()).collect()
}

/// A clock that goes on by 0.1 to 12.8 ms between two looks at it: no test depends on how fast ranks are.
fn clock(seed: u64) -> impl FnMut() -> Seconds {
    let (mut random, mut now) = (Random(seed), 0.0);
    move || {
        now += 1e-4 * (1 + random.below(128)) as f64;
        Seconds::new(now)
    }
}

/// Tokens of a sequence in a step: its number, those before them, and how many.
type Decision = (usize, usize, usize);

/// Ranks, and what they ran.
struct Logged<'a> {
    ranks: &'a mut dyn Runner,
    steps: Vec<Vec<Decision>>,
    /// The tokens of the sequences that were freed in each.
    freed: Vec<usize>,
}

impl Runner for Logged<'_> {
    fn run(&mut self, batch: Batch) -> Result<Vec<ChosenToken>, CliError> {
        let step = batch.parts.iter().map(|part| (part.sequence, part.first, part.tokens.len())).collect();
        self.freed.extend(&batch.freed);
        let chosen = self.ranks.run(batch)?;
        self.steps.push(step);
        Ok(chosen)
    }
}

/// Times of steps that were measured before.
struct Recorded {
    times: std::vec::IntoIter<Seconds>,
    steps: Vec<Vec<Decision>>,
}

impl StepSource for Recorded {
    type Error = CliError;

    fn take(&mut self, queue: &Queue, works: &[Work]) -> Result<Seconds, CliError> {
        let decision = |work: &Work| (work.sequence, queue.sequences[work.sequence].computed, work.tokens);
        self.steps.push(works.iter().map(decision).collect());
        Ok(self.times.next().expect("the run had as many steps"))
    }
}

/// A run on ranks: what became of the requests, all tokens, the steps as ranks ran them, and their times.
struct Ran {
    served: Served,
    tokens: Vec<Vec<u32>>,
    steps: Vec<Vec<Decision>>,
    times: Vec<Seconds>,
}

fn settings(capacity: usize) -> Settings {
    let sizes = [LONGEST, 20 * LONGEST, 20, capacity];
    Settings { seed: 11, serving: Some(Serving::new(sizes, WeightFormat::Fp32)), ..Settings::default() }
}

fn run(policy: &dyn Policy, limits: Limits, capacity: usize, load: &Load, seed: u64) -> Ran {
    let plan = tensor_and_pipeline_ranks(model(), 1, 1);
    let ran: Result<Ran, CliError> = serve_batches(&plan, &settings(capacity), &mut |_| {}, |ranks| {
        let mut logged = Logged { ranks, steps: Vec::new(), freed: Vec::new() };
        let mut clock = clock(seed);
        let mut steps = RankSteps::new(&mut logged, &mut clock, prompts(load, seed));
        let served = serve(&mut steps, policy, limits, capacity, load)?;
        let tokens = steps.tokens.clone();
        let times = steps.steps.iter().map(|step| step.time).collect();
        steps.end()?;
        // The last batch frees what is left.
        assert_eq!(logged.steps.pop(), Some(Vec::new()));
        let mut freed = logged.freed;
        freed.sort_unstable();
        freed.dedup();
        assert_eq!(freed, (0..load.requests().len()).collect::<Vec<_>>());
        Ok(Ran { served, tokens, steps: logged.steps, times })
    });
    ran.unwrap()
}

/// Limits that make every policy cut prompts, fill the cache and, if it does so, preempt.
fn tight(seed: u64) -> (Limits, usize) {
    let limits = Limits { sequences: 3 + seed as usize % 4, tokens: 8 + 3 * (seed as usize % 5), block: 4 };
    (limits, 40 + 8 * (seed as usize % 3))
}

#[test]
fn a_simulation_with_measured_times_makes_the_decisions_of_the_run() {
    let mut preempted = 0;
    for policy in POLICIES {
        for seed in 0..6 {
            let (limits, capacity) = tight(seed);
            let load = trace(seed, 12);
            let ran = run(policy, limits, capacity, &load, seed);
            let mut recorded = Recorded { times: ran.times.into_iter(), steps: Vec::new() };
            let simulated = serve(&mut recorded, policy, limits, capacity, &load).unwrap();
            let case = format!("{} {seed}", policy.name());
            assert_eq!(recorded.steps.len(), ran.steps.len(), "{case}");
            for (number, (simulated, ran)) in recorded.steps.iter().zip(&ran.steps).enumerate() {
                assert_eq!(simulated, ran, "{case}, step {number}");
            }
            assert_eq!(recorded.times.next(), None, "{case}");
            assert_eq!(simulated, ran.served, "{case}");
            preempted += ran.served.preemptions;
            // Every request has its answer.
            for (request, tokens) in load.requests().iter().zip(&ran.tokens) {
                assert_eq!(tokens.len(), request.input + request.output, "{case}");
            }
        }
    }
    assert!(preempted > 20, "{preempted}");
}

/// What `generate` makes of each prompt alone.
fn alone(load: &Load, seed: u64) -> Vec<Vec<u32>> {
    let plan = tensor_and_pipeline_ranks(model(), 1, 1);
    let longest = load.requests().iter().map(|request| request.output).max().unwrap();
    let generation = Generation {
        prompts: prompts(load, seed),
        tokens: NonZeroUsize::new(longest).unwrap(),
        stop: None,
        sampling: None,
        weights: WeightFormat::Fp32,
        return_logits: false,
    };
    let settings = Settings {
        seed: 11,
        start: Start::Anew,
        generation: Some(generation.clone()),
        ..Settings::default()
    };
    let made = generate(&plan, &settings, &mut |_| {}).unwrap();
    let of = |((prompt, made), request): ((Vec<u32>, trainwright_executor::Completion), usize)| {
        [prompt, made.tokens[..request].to_vec()].concat()
    };
    let outputs = load.requests().iter().map(|request| request.output);
    generation.prompts.into_iter().zip(made).zip(outputs).map(of).collect()
}

#[test]
fn answers_are_those_of_each_request_alone_also_after_preemptions() {
    for name in ["token-budget", "prefill-first"] {
        let (limits, load) = (Limits { sequences: 6, tokens: 16, block: 4 }, trace(3, 12));
        let ran = run(policy(name).unwrap(), limits, 40, &load, 3);
        assert!(ran.served.preemptions > 2, "{name}: {}", ran.served.preemptions);
        assert_eq!(ran.tokens, alone(&load, 3), "{name}");
    }
}

#[test]
fn a_calibration_measures_steps_up_to_the_largest_and_leaves_no_sequence() {
    let calibration = Calibration {
        tokens: 24,
        sequences: 6,
        longest: LONGEST,
        cached: 120,
        repeats: 3,
        vocabulary: VOCABULARY,
    };
    let plan = tensor_and_pipeline_ranks(model(), 1, 1);
    let ran: Result<(), CliError> = serve_batches(&plan, &settings(200), &mut |_| {}, |ranks| {
        let mut logged = Logged { ranks, steps: Vec::new(), freed: Vec::new() };
        calibration.warm_up(&mut logged)?;
        calibrate(&mut logged, &mut clock(1), &calibration)?;
        let rows = |step: &Vec<Decision>| step.iter().map(|(_, _, tokens)| tokens).sum::<usize>();
        assert_eq!(logged.steps.iter().map(rows).max(), Some(24));
        assert_eq!(logged.steps.iter().map(Vec::len).max(), Some(6));
        assert!(logged.steps.iter().flatten().all(|(_, first, tokens)| first + tokens <= LONGEST));
        // Sequences of the same numbers begin anew: a rank that still had one would stop.
        let mut steps_clock = clock(2);
        let load = trace(5, 6);
        let mut steps = RankSteps::new(&mut logged, &mut steps_clock, prompts(&load, 5));
        let limits = Limits { sequences: 6, tokens: 24, block: 4 };
        serve(&mut steps, policy("token-budget").unwrap(), limits, 200, &load)?;
        Ok(())
    });
    ran.unwrap();
}
