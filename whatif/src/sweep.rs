//! All combinations of the values of some inputs, each planned anew.
//!
//! Points come in the order of the axes, the last one varying fastest, whatever the number of threads.

use crate::answer::{Answer, Outcome, outcome};
use crate::input;
use crate::scenario::{Base, Scenario};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use trainwright_spec::calibration::Calibration;
use trainwright_spec::units::Seconds;

/// The values that an input takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Its name, or the path of a key.
    pub input: String,
    /// Not empty.
    pub values: Vec<String>,
}

/// The values that were varied, and the scenario with them, or why they cannot go together.
pub type Point = (Vec<String>, Result<Scenario, String>);

/// Who looks on while points are planned, and until when they may be.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Called with points done and all points, from several threads.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
    /// When the last search ends; `None`: when nothing is left to find, so that answers do not depend on the machine's speed.
    pub end: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// Without an end.
    pub fn of(progress: &'a (dyn Fn(usize, usize) + Sync)) -> Self {
        Watch { progress, end: None }
    }

    /// The time for a search, of the `left` searches that have not begun, itself included: an even part of what remains, with one
    /// part to spare, as many at once as there are threads. `None` without an end.
    fn share(&self, left: usize) -> Option<Seconds> {
        let rest = self.end?.saturating_duration_since(Instant::now()).as_secs_f64();
        let at_once = rayon::current_num_threads().min(left);
        Some(Seconds::new(rest * at_once as f64 / (left + 1) as f64))
    }
}

/// The most points of a sweep.
pub const MOST_POINTS: usize = 100_000;

impl Axis {
    /// An axis from `nodes=8,16,..2048`.
    ///
    /// # Errors
    /// The missing part, or text that is no list of values.
    pub fn parse(text: &str) -> Result<Axis, String> {
        let (input, values) =
            text.split_once('=').ok_or("it must be an input and its values: nodes=8,16,..64")?;
        Ok(Axis { input: input.trim().into(), values: input::values(values)? })
    }

    /// The numbers that its values stand for, if every one has another: `x2` is 2, `80GiB` is 80.
    pub fn numbers(&self) -> Option<Vec<f64>> {
        let number = |text: &String| {
            let text = text.strip_prefix('x').unwrap_or(text);
            let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
            let unit = text[end..].trim();
            let scale = match unit {
                "K" | "k" => 1e3,
                "M" => 1e6,
                "B" | "G" => 1e9,
                "T" => 1e12,
                _ => 1.0,
            };
            let is_unit = unit.chars().all(|c| c.is_alphabetic() || c == '/');
            text[..end].parse::<f64>().ok().filter(|_| is_unit && end > 0).map(|number| number * scale)
        };
        let numbers: Vec<f64> = self.values.iter().map(number).collect::<Option<_>>()?;
        let mut sorted = numbers.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.windows(2).all(|pair| pair[0] < pair[1]).then_some(numbers)
    }
}

/// A scenario for each combination, or why its values cannot go together.
///
/// # Errors
/// The first input or value that makes no sense even alone, as `input=value: reason`, or too many points.
pub fn points(base: &Scenario, axes: &[Axis]) -> Result<Vec<Point>, String> {
    for axis in axes {
        for value in &axis.values {
            input::set(&mut base.clone(), &axis.input, value)
                .map_err(|reason| format!("{}={value}: {reason}", axis.input))?;
        }
    }
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    if count.is_none_or(|count| count > MOST_POINTS) {
        return Err(format!("the sweep has more than {MOST_POINTS} points"));
    }
    let mut points = vec![(Vec::new(), Ok(base.clone()))];
    for axis in axes {
        let with = |(before, scenario): &Point, value: &String| {
            let mut point = before.clone();
            point.push(value.clone());
            let scenario = scenario.clone().and_then(|mut scenario| {
                input::set(&mut scenario, &axis.input, value)?;
                Ok(scenario)
            });
            (point, scenario)
        };
        points =
            points.iter().flat_map(|point| axis.values.iter().map(move |value| with(point, value))).collect();
    }
    Ok(points)
}

/// The answers of a sweep.
///
/// # Errors
/// Those of `points`; a point without a plan is an answer.
pub fn sweep(base: &Scenario, axes: &[Axis], watch: Watch) -> Result<Vec<Answer>, String> {
    Ok(answers(points(base, axes)?, watch))
}

/// The answers of scenarios, in parallel. Scenarios that differ in rates alone are planned once. Those without a search before the
/// end have the reason in their outcome.
pub fn answers(points: Vec<Point>, watch: Watch) -> Vec<Answer> {
    let mut distinct: Vec<(&Base, Option<&Calibration>)> = Vec::new();
    let which: Vec<Option<usize>> = points
        .iter()
        .map(|(_, scenario)| {
            let scenario = scenario.as_ref().ok()?;
            let base = (&scenario.base, scenario.calibration.as_deref());
            let known = distinct.iter().position(|other| *other == base);
            Some(known.unwrap_or_else(|| {
                distinct.push(base);
                distinct.len() - 1
            }))
        })
        .collect();
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    (watch.progress)(0, distinct.len());
    let outcomes: Vec<Outcome> = distinct
        .par_iter()
        .map(|(base, calibration)| {
            let left = distinct.len() - begun.fetch_add(1, Ordering::Relaxed);
            let time = watch.share(left);
            let outcome = match calibration {
                _ if time == Some(Seconds::ZERO) => Err("not planned: the time limit came before".into()),
                Some(calibration) => outcome(&base.calibrated(calibration), time),
                None => outcome(base, time),
            };
            (watch.progress)(1 + done.fetch_add(1, Ordering::Relaxed), distinct.len());
            outcome
        })
        .collect();
    points
        .into_iter()
        .zip(which)
        .map(|((point, scenario), which)| match (scenario, which) {
            (Ok(scenario), Some(which)) => {
                Answer { point, scenario: Some(scenario), outcome: outcomes[which].clone() }
            }
            (Ok(_), None) => unreachable!("every scenario is planned"),
            (Err(reason), _) => Answer { point, scenario: None, outcome: Err(reason) },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_read_and_know_their_numbers() {
        let check = |text: &str, expected: Option<&[f64]>| {
            assert_eq!(Axis::parse(text).unwrap().numbers().as_deref(), expected, "{text}");
        };
        check("nodes=1,2,..8", Some(&[1.0, 2.0, 4.0, 8.0]));
        check("nic-bandwidth=x1,x2", Some(&[1.0, 2.0]));
        check("memory=80GiB,141GiB", Some(&[80.0, 141.0]));
        check("model-size=500M,7B", Some(&[5e8, 7e9]));
        check("gpu=h100-80gb-sxm,h200-sxm", None);
        check("seq=4096,4096", None);
        assert!(Axis::parse("nodes").is_err());
    }
}
