//! Rules that people use, and two that a good schedule is found from. Each is a file; `HEURISTICS` lists them.

mod backfill;
mod balanced;
mod longest_first;
mod maximum;
mod minimum;
mod one_after_another;
mod one_node_each;
mod optimus;
mod random;

use crate::instance::{Choice, Instance};
use crate::list::{Sequence, schedule};
use crate::objective::Objective;
use crate::schedule::Schedule;
use std::cmp::Ordering;

/// A rule that makes a schedule.
pub trait Heuristic: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// What it does, in a few words.
    fn summary(&self) -> &'static str;
    /// Whether it is how jobs are run today, which a schedule is compared with.
    fn is_current_practice(&self) -> bool {
        false
    }
    /// Its schedule. Every job has a choice that fits.
    fn schedule(&self, instance: &Instance, objective: Objective) -> Schedule;
}

/// All of them.
pub const HEURISTICS: [&dyn Heuristic; 9] = [
    &one_after_another::OneAfterAnother,
    &one_node_each::OneNodeEach,
    &maximum::Maximum,
    &minimum::Minimum,
    &random::Random,
    &optimus::OptimusGreedy,
    &longest_first::LongestFirst,
    &backfill::Backfill,
    &balanced::Balanced,
];

/// The choice of a job that is least by `order`.
fn least(instance: &Instance, job: usize, order: impl Fn(&Choice, &Choice) -> Ordering) -> usize {
    let choices = &instance.jobs[job].choices;
    let fits = (0..choices.len()).filter(|index| instance.has_room(job, &choices[*index]));
    fits.min_by(|one, other| order(&choices[*one], &choices[*other]))
        .expect("every job has a choice that fits")
}

/// The jobs by falling duration.
fn by_duration(instance: &Instance, choices: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by_key(|job| std::cmp::Reverse(instance.jobs[*job].choices[choices[*job]].duration));
    order
}

/// The jobs in the order in which they stand, as early as possible.
fn in_order(instance: &Instance, choices: Vec<usize>) -> Schedule {
    schedule(instance, &Sequence { order: (0..choices.len()).collect(), choices })
}
