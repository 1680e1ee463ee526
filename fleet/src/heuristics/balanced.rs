//! For a time T, every job gets the choice of least GPU-time among those not longer than T; the longest job begins first. The
//! best of several T is taken.
//!
//! Source: the choice is that of Turek, Wolf & Yu 1992, SPAA, 323–332.

use super::{Heuristic, least};
use crate::bound::{Moving, lower_bound};
use crate::gaps::schedule_in_gaps;
use crate::instance::{Choice, Instance};
use crate::list::{Sequence, schedule};
use crate::objective::Objective;
use crate::schedule::Schedule;
use std::cmp::Reverse;

/// Times that are tried.
const TRIES: usize = 32;
/// The most jobs for which gaps are filled, too.
const MOST_FILLED: usize = 100;

/// Least GPU-time within a time.
pub struct Balanced;

impl Heuristic for Balanced {
    fn name(&self) -> &'static str {
        "balanced"
    }

    fn summary(&self) -> &'static str {
        "the plan of least GPU-time that takes no longer than T, for several T"
    }

    fn schedule(&self, instance: &Instance, objective: Objective) -> Schedule {
        let makespan = times(instance);
        let tails = instance.tails();
        let best_of = |limit: u64| {
            let choice = |job| {
                least(instance, job, |one, other| {
                    let key = |choice: &Choice| {
                        let over = choice.duration > limit;
                        (over, if over { choice.duration } else { choice.area() }, choice.duration)
                    };
                    key(one).cmp(&key(other))
                })
            };
            let choices: Vec<usize> = (0..instance.jobs.len()).map(choice).collect();
            let duration = |job: usize| instance.jobs[job].choices[choices[job]].duration;
            let gpus = |job: usize| instance.jobs[job].choices[choices[job]].gpus;
            let mut orders = Vec::new();
            let mut sorted_by = |key: &dyn Fn(usize) -> (u64, u64)| {
                let mut order: Vec<usize> = (0..choices.len()).collect();
                order.sort_by_key(|job| Reverse(key(*job)));
                orders.push(order);
            };
            sorted_by(&|job| (duration(job) + tails[job], gpus(job) as u64));
            sorted_by(&|job| (gpus(job) as u64, duration(job) + tails[job]));
            sorted_by(&|job| (instance.jobs[job].choices[choices[job]].area(), tails[job]));
            sorted_by(&|job| (u64::MAX - instance.jobs[job].deadline.unwrap_or(u64::MAX), duration(job)));
            if objective == Objective::Completion {
                let rate = |job: usize| instance.jobs[job].weight / (gpus(job) as f64 * duration(job) as f64);
                let mut order: Vec<usize> = (0..choices.len()).collect();
                order.sort_by(|one, other| rate(*other).total_cmp(&rate(*one)));
                orders.push(order);
            }
            let all = orders.into_iter().flat_map(|order| {
                let sequence = Sequence { order, choices: choices.clone() };
                let filled = (choices.len() <= MOST_FILLED).then(|| schedule_in_gaps(instance, &sequence));
                [Some(schedule(instance, &sequence)), filled]
            });
            least_of(instance, objective, all.flatten())
        };
        let all = makespan.into_iter().filter_map(best_of);
        least_of(instance, objective, all).unwrap_or(Schedule { placed: Vec::new() })
    }
}

/// Times to try: durations of choices, and times near the lower bound of the makespan.
fn times(instance: &Instance) -> Vec<u64> {
    let durations = instance.jobs.iter().flat_map(|job| job.choices.iter().map(|choice| choice.duration));
    let mut times: Vec<u64> = durations.collect();
    times.sort_unstable();
    times.dedup();
    let longest = times.last().copied().unwrap_or(0);
    let stride = times.len().div_ceil(TRIES).max(1);
    let serial: u64 = (0..instance.jobs.len()).map(|job| instance.shortest(job)).sum();
    let bound = lower_bound(instance, Objective::Makespan, Moving::No, (serial + longest) as f64);
    let near = (0..TRIES).map(|index| (bound * (0.3 + 0.8 * index as f64 / TRIES as f64)) as u64);
    times.iter().copied().step_by(stride).chain([longest]).chain(near).collect()
}

/// The best schedule.
fn least_of(
    instance: &Instance,
    objective: Objective,
    schedules: impl Iterator<Item = Schedule>,
) -> Option<Schedule> {
    let scored = schedules.map(|schedule| (objective.score(instance, &schedule), schedule));
    scored.min_by(|one, other| one.0.compare(&other.0)).map(|(_, schedule)| schedule)
}
