//! Generation: the prompts of a step as a batch of requests through the engine's instances.

use crate::serving::{Instance, Load, MemoryUse, Request, ServingError};
use trainwright_spec::rl::{Mode, RlPlan};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::{Bytes, Seconds};

/// Rounds of a loop without end that are simulated; the first fills the engine, the others are alike.
const ROUNDS: usize = 3;

/// What generation took.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Until the last answer is complete; without end: of as many answers as a step has.
    pub time: Seconds,
    /// Until nine of ten answers of the instance that ends last are complete.
    pub most_done: Seconds,
    /// Sequences that ran at once in the mean.
    pub running: usize,
    /// How often a sequence lost its blocks and was computed again.
    pub preemptions: usize,
    /// The longest answer.
    pub longest: usize,
    /// Instances.
    pub replicas: usize,
    /// The number of the one that ends last.
    pub last: usize,
    /// Memory of the engine's fullest GPU.
    pub memory: MemoryUse,
    /// The most that this GPU held.
    pub held: Bytes,
}

impl Generated {
    /// What the engine takes of a GPU's memory: its share, or weights and work where they are more.
    pub fn needs(&self, engine: &ServingPlan, gpu: Bytes) -> Bytes {
        let share = engine.engine.batching.memory_share.value * gpu;
        share.max(self.memory.weights + self.memory.working)
    }
}

/// The answers of a step. Each instance gets the prompts r, r + R, …, all answers to a prompt, and has the prompt's keys and values
/// from the first of them on. The instance with the most tokens and the one with the longest answer are simulated: the later of
/// them is the time.
///
/// An asynchronous engine never waits for its longest answer: it has (1 + staleness) steps' answers under way, and the time is
/// that in which as many end as a step has.
///
/// # Errors
/// `ServingError`: an answer does not fit, or the GPU lacks something.
pub fn generate(plan: &RlPlan) -> Result<Generated, ServingError> {
    let replicas = plan.replicas();
    let answers = plan.job.responses.drawn(plan.job.samples());
    let shares = shares(plan, &answers, replicas);
    let tokens = |instance: &usize| shares[*instance].iter().sum::<usize>();
    let longest = |instance: &usize| shares[*instance].iter().max().copied().unwrap_or(0);
    let most = (0..replicas).max_by_key(tokens).expect("there is an instance");
    let tail = (0..replicas).max_by_key(longest).expect("there is an instance");
    let mut slowest = run(plan, &shares[most], most)?;
    if most != tail {
        let other = run(plan, &shares[tail], tail)?;
        slowest = if other.time > slowest.time { other } else { slowest };
    }
    Ok(Generated { longest: answers.iter().max().copied().unwrap_or(0), ..slowest })
}

/// The requests of a step to one of the instances, all at once.
pub fn requests_of(plan: &RlPlan, instance: usize) -> Vec<Request> {
    let answers = plan.job.responses.drawn(plan.job.samples());
    requests(plan, &shares(plan, &answers, plan.replicas())[instance])
}

/// The answers of each instance.
fn shares(plan: &RlPlan, answers: &[usize], replicas: usize) -> Vec<Vec<usize>> {
    let mut shares = vec![Vec::new(); replicas];
    let whole_prompts = plan.job.prompts >= replicas;
    for (index, answer) in answers.iter().enumerate() {
        let of = if whole_prompts { index / plan.job.rollouts } else { index };
        shares[of % replicas].push(*answer);
    }
    shares
}

fn requests(plan: &RlPlan, answers: &[usize]) -> Vec<Request> {
    let request = |(index, answer): (usize, &usize)| {
        let first = index % plan.job.rollouts == 0;
        let cached = if first { 0 } else { plan.job.prompt - 1 };
        Request { cached, ..Request::new(Seconds::ZERO, plan.job.prompt, (*answer).max(1)) }
    };
    answers.iter().enumerate().map(request).collect()
}

fn run(plan: &RlPlan, answers: &[usize], instance: usize) -> Result<Generated, ServingError> {
    let once = requests(plan, answers);
    let load = match plan.mode {
        Mode::Async { staleness } => {
            let clients = (once.len() as f64 * (1.0 + staleness)).round().max(1.0) as usize;
            Load::Closed { clients, requests: once.repeat(ROUNDS + staleness.ceil() as usize) }
        }
        _ => Load::Open(once.clone()),
    };
    let model = &plan.actor.model;
    let mut engine = Instance::new(model, &plan.engine, &plan.generation, &load, None)?;
    let served = engine.serve(&load)?;
    let mut ends: Vec<f64> = served.requests.iter().map(|request| request.last.get()).collect();
    ends.sort_by(f64::total_cmp);
    let time = match plan.mode {
        // From the end of the first step's answers on, without the last ones, which run out with fewer and fewer sequences.
        Mode::Async { .. } => {
            let (from, to) = (ends.len() / 4, ends.len() * 3 / 4);
            let rate = (to - from) as f64 / (ends[to] - ends[from]).max(1e-9);
            Seconds::new(once.len() as f64 / rate)
        }
        _ => served.duration,
    };
    Ok(Generated {
        time,
        most_done: Seconds::new(ends[(ends.len() * 9 / 10).min(ends.len() - 1)]),
        running: served.mean_running(),
        preemptions: served.preemptions,
        longest: 0,
        replicas: plan.replicas(),
        last: instance,
        memory: engine.memory,
        held: engine.most_memory(&served),
    })
}
