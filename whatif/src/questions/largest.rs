//! The largest model, and the longest sequence, that can be trained at all.

use super::{BETWEEN, point, sorted};
use crate::answer::Answer;
use crate::scenario::Scenario;
use crate::sweep::{Point, Watch, answers};

/// Factors that were tried, and the largest that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Largest {
    /// By size.
    pub answers: Vec<Answer>,
    /// Index of the largest that fits; `None` if nothing does.
    pub largest: Option<usize>,
}

/// How often a size is doubled or halved at most: a factor of a thousand.
const DOUBLINGS: i32 = 10;

/// The largest model in the shape of the scenario's that fits: its parameters times 1, 2, 4, …, or ½, ¼, … if the model
/// itself does not fit, and then eighths between the last that fits and the first that does not.
pub fn largest_model(base: &Scenario, watch: Watch) -> Largest {
    let parameters = base.model().parameters() as f64;
    let at = |factor: f64| point(base, &[("model-size", format!("{:.0}", factor * parameters))]);
    largest(
        &at,
        |answer| answer.scenario.as_ref().map_or(0.0, |scenario| scenario.model().parameters() as f64),
        watch,
    )
}

/// The longest sequence that fits, with the same number of tokens in a step: the scenario's length times 1, 2, 4, …, as far as a
/// sequence remains, and then eighths.
pub fn longest_sequence(base: &Scenario, watch: Watch) -> Largest {
    let (sequence, batch) = (base.job().sequence as f64, base.job().global_batch as f64);
    let at = |factor: f64| {
        let length = (factor * sequence).round().max(1.0);
        let sequences = (sequence * batch / length).round().max(1.0);
        point(base, &[("seq", format!("{length:.0}")), ("global-batch", format!("{sequences:.0}"))])
    };
    largest(&at, |answer| answer.point[0].parse().unwrap_or_default(), watch)
}

fn largest(at: &dyn Fn(f64) -> Point, size: impl Fn(&Answer) -> f64, watch: Watch) -> Largest {
    let fits = |answer: &Answer| answer.outcome.is_ok();
    let mut all = answers(vec![at(1.0)], watch);
    // One after the other: models that are much too large take the planner no time, those that are much too small would.
    let up = fits(&all[0]);
    let mut last_fit = up.then_some(1.0);
    for doubling in 1..=DOUBLINGS {
        let factor = if up { 2f64.powi(doubling) } else { 0.5f64.powi(doubling) };
        let answer = answers(vec![at(factor)], watch).remove(0);
        let fit = fits(&answer);
        all.push(answer);
        if fit {
            last_fit = Some(factor);
        }
        if fit != up {
            break;
        }
    }
    if let Some(low) = last_fit {
        let between = (1..BETWEEN).map(|eighth| at(low * (1.0 + eighth as f64 / BETWEEN as f64)));
        all.extend(answers(between.collect(), watch));
    }
    let mut answers = sorted(all, &size);
    answers.dedup_by(|a, b| a.point == b.point || (size(a) == size(b) && a.scenario == b.scenario));
    let largest = answers.iter().rposition(fits);
    Largest { answers, largest }
}
