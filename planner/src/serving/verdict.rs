//! From a question to the pools that serve it, and what became of every other option.

use super::capacity::{Broken, Capacity, Point, Trial};
use super::options::{Role, ServingOption, memory_alone, options};
use super::pools::{Mix, OptionOfPool, best_mix};
use super::{Objective, ServingQuestion};
use rayon::prelude::*;
use std::time::Instant;
use trainwright_sim::serving::ServingError;
use trainwright_spec::units::{Bytes, Seconds};

/// Instances of one option.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// The option.
    pub option: ServingOption,
    /// How many.
    pub instances: usize,
    /// The most requests a second that one keeps.
    pub most: f64,
    /// What one gives at its share of the requests.
    pub point: Point,
}

/// An option that was looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// The option.
    pub option: ServingOption,
    /// What became of it.
    pub outcome: TriedOutcome,
}

/// What became of an option.
#[derive(Debug, Clone, PartialEq)]
pub enum TriedOutcome {
    /// It keeps a rate.
    Kept(Capacity),
    /// It does not keep this rate, which smaller instances on the same GPUs do.
    Fewer(Point, Broken),
    /// It does not keep the limits for a request that is almost alone.
    Never(Point, Broken),
    /// Weights and one sequence do not fit: what weights take on the fullest GPU.
    DoesNotFit(Bytes),
    /// The GPU lacks something.
    Impossible(String),
    /// The time limit came first.
    NotTried,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingVerdict {
    /// The pools that serve the rate; none if the nodes cannot.
    pub pools: Vec<Pool>,
    /// Requests a second that the pools take: those asked, or the most.
    pub rate: f64,
    /// Whether the solver proved that no mix of the options' rates is better.
    pub proved: bool,
    /// The most requests a second that all nodes can take, where that is less than what is asked.
    pub most: Option<f64>,
    /// Every option.
    pub tried: Vec<Tried>,
}

/// Answers a question. With `every_rate` the rates of all options are found, also of those that smaller instances beat. After `limit`
/// no other option is tried. `progress` hears how many options of how many are done.
pub fn plan_serving(
    question: &ServingQuestion,
    every_rate: bool,
    limit: Option<Seconds>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> ServingVerdict {
    let options = options(question);
    let begun = Instant::now();
    let is_over = || limit.is_some_and(|limit| begun.elapsed().as_secs_f64() >= limit.get());
    let mut tried: Vec<Tried> = Vec::with_capacity(options.len());
    for size in options.chunk_by(|one, other| one.plan.gpus() == other.plan.gpus()) {
        let outcomes: Vec<TriedOutcome> = size
            .par_iter()
            .map(|option| match is_over() {
                true => TriedOutcome::NotTried,
                false => {
                    attempt(question, option, (!every_rate).then(|| beaten_at(option, &tried)).flatten())
                }
            })
            .collect();
        let done =
            size.iter().zip(outcomes).map(|(option, outcome)| Tried { option: option.clone(), outcome });
        tried.extend(done);
        progress(tried.len(), options.len());
    }
    let kept: Vec<(&ServingOption, &Capacity)> = tried
        .iter()
        .filter_map(|tried| match &tried.outcome {
            TriedOutcome::Kept(capacity) => Some((&tried.option, capacity)),
            _ => None,
        })
        .collect();
    let columns: Vec<OptionOfPool> =
        kept.iter().map(|(option, capacity)| column(question, option, capacity)).collect();
    let gpus: Vec<usize> = question.kinds.iter().map(|kind| kind.cluster.gpus()).collect();
    let mix = best_mix(&columns, &gpus, question.rate);
    let most = match (&mix, question.rate) {
        (None, Some(_)) => best_mix(&columns, &gpus, None).map(|mix| mix.rate),
        _ => None,
    };
    let all_tried = tried.iter().all(|tried| tried.outcome != TriedOutcome::NotTried);
    let Some(mix) = mix else {
        return ServingVerdict { pools: Vec::new(), rate: 0.0, proved: all_tried, most, tried };
    };
    let rate = question.rate.unwrap_or(mix.rate);
    let pools = pools(question, &kept, &columns, &mix, rate);
    ServingVerdict { pools, rate, proved: mix.proved && all_tried, most, tried }
}

/// The rate that smaller instances of the same kind and role keep on the option's GPUs; `None` if none do. An option that does not
/// keep it is in no best mix: they take its place. Only sizes that divide the option's count, as all smaller ones do.
fn beaten_at(option: &ServingOption, tried: &[Tried]) -> Option<f64> {
    let gpus = option.plan.gpus();
    let rates = tried.iter().filter_map(|tried| match &tried.outcome {
        TriedOutcome::Kept(capacity)
            if (tried.option.kind, tried.option.role) == (option.kind, option.role)
                && gpus.is_multiple_of(tried.option.plan.gpus()) =>
        {
            Some(capacity.kept.rate * (gpus / tried.option.plan.gpus()) as f64)
        }
        _ => None,
    });
    rates.reduce(f64::max)
}

fn attempt(question: &ServingQuestion, option: &ServingOption, beaten_at: Option<f64>) -> TriedOutcome {
    let mean = question.traffic.mean();
    let cluster = &question.kinds[option.kind].cluster;
    let memory = memory_alone(&question.model, &option.plan, cluster, mean.input);
    let weights = memory.map_or(Bytes::ZERO, |memory| memory.weights);
    let found = Trial::new(question, option).and_then(|trial| trial.capacity(beaten_at));
    match found {
        Ok(Ok(capacity)) => TriedOutcome::Kept(capacity),
        Ok(Err((point, broken))) if beaten_at.is_some() => TriedOutcome::Fewer(point, broken),
        Ok(Err((point, broken))) => TriedOutcome::Never(point, broken),
        Err(ServingError::TooLong { .. }) => TriedOutcome::DoesNotFit(weights),
        Err(ServingError::Unknown(error)) => TriedOutcome::Impossible(error.to_string()),
    }
}

fn column(question: &ServingQuestion, option: &ServingOption, capacity: &Capacity) -> OptionOfPool {
    let gpus = option.plan.gpus();
    let price = question.kinds[option.kind].price.unwrap_or(0.0);
    OptionOfPool {
        kind: option.kind,
        role: option.role,
        gpus,
        rate: capacity.kept.rate,
        worth: match question.objective {
            Objective::Gpus => gpus as f64,
            Objective::Cost => price * gpus as f64,
        },
    }
}

/// The pools of a mix, each instance with a share of `rate` in proportion to what it keeps.
fn pools(
    question: &ServingQuestion,
    kept: &[(&ServingOption, &Capacity)],
    columns: &[OptionOfPool],
    mix: &Mix,
    rate: f64,
) -> Vec<Pool> {
    let sum = |role: Role| -> f64 {
        let mine = columns.iter().zip(&mix.instances).filter(|(column, _)| column.role == role);
        mine.map(|(column, count)| *count as f64 * column.rate).sum()
    };
    let apart = sum(Role::Prefill).min(sum(Role::Decode));
    let used = columns.iter().zip(&mix.instances).enumerate().filter(|(_, (_, count))| **count > 0);
    used.map(|(index, (column, count))| {
        let (option, capacity) = kept[index];
        let part = match column.role {
            Role::Whole => 1.0,
            role => apart / sum(role),
        };
        let share = rounded_up(column.rate * part * rate / mix.rate).min(column.rate);
        let point = match share < column.rate {
            true => {
                let mut trial = Trial::new(question, option).expect("it was tried before");
                trial.at(share).expect("a higher rate was simulated").0
            }
            false => capacity.kept,
        };
        Pool { option: option.clone(), instances: *count, most: column.rate, point }
    })
    .collect()
}

/// A rate with four digits, not below `rate`.
fn rounded_up(rate: f64) -> f64 {
    let digits: f64 = format!("{rate:.3e}").parse().expect("a number was written");
    if digits >= rate {
        return digits;
    }
    let unit = libm::pow(10.0, libm::log10(rate).floor() - 3.0);
    format!("{:.3e}", digits + unit).parse().expect("a number was written")
}
