//! The most common questions, as sweeps that choose their points themselves.

mod compute_optimal;
mod gpus_needed;
mod largest;
mod scaling;
mod upgrades;

pub use compute_optimal::{Budget, ComputeOptimal, compute_optimal};
pub use gpus_needed::{GpusNeeded, gpus_needed};
pub use largest::{Largest, largest_model, longest_sequence};
pub use scaling::{Scaling, scaling};
pub use upgrades::upgrades;

use crate::answer::Answer;
use crate::input;
use crate::scenario::Scenario;
use crate::sweep::Point;

/// Points between a value that does and its double that does not: a step of an eighth of the first.
const BETWEEN: usize = 8;

/// The base with some inputs set, for `sweep::answers`.
fn point(base: &Scenario, settings: &[(&str, String)]) -> Point {
    let values = settings.iter().map(|(_, value)| value.clone()).collect();
    let scenario = settings.iter().try_fold(base.clone(), |mut scenario, (name, value)| {
        input::set(&mut scenario, name, value)?;
        Ok(scenario)
    });
    (values, scenario)
}

/// The answers in the order of a number that each has.
fn sorted(mut answers: Vec<Answer>, key: impl Fn(&Answer) -> f64) -> Vec<Answer> {
    answers.sort_by(|a, b| key(a).total_cmp(&key(b)));
    answers
}
