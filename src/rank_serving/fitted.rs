//! The times of steps that a calibration expects.
//!
//! t = f(rows) + a · keys + b · sampled + c · parts, where f is linear between numbers of rows that were measured: a weight is
//! read once for all rows of a step, so that the first row costs more than the others. Behind the largest number measured f goes on
//! as between the last two.

use super::ranks::CarriedOut;
use super::shape::StepShape;
use crate::error::CliError;
use trainwright_sim::serving::{Queue, StepSource, Work};
use trainwright_spec::statistics::quantile;
use trainwright_spec::units::Seconds;

/// Sweeps of coordinate descent at most: it ends earlier where coefficients stand still.
const SWEEPS: usize = 20_000;

/// Fits, each with the errors relative to what the one before expects; the first to what was measured.
const REWEIGHTED: usize = 4;

/// Errors are relative to this part of the median step's time at least: one step of next to no time would else weigh more than
/// all others together.
const LEAST_EXPECTED: f64 = 0.03;

/// Expected times of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct FittedSteps {
    /// Numbers of rows that were measured, ascending.
    rows: Vec<usize>,
    /// f at the first of them, its growth from one to the next, then a, b and c; none below zero. In seconds.
    coefficients: Vec<f64>,
}

impl FittedSteps {
    /// The least squares of errors over measured steps, each relative to its expected time, without a negative coefficient. Errors
    /// relative to measured times would count the short ones of equal steps more, and expect too little.
    ///
    /// # Panics
    /// If there is no step.
    pub fn new(steps: &[CarriedOut]) -> Self {
        let rows = knots(steps.iter().map(|step| step.shape.rows).collect());
        assert!(!rows.is_empty(), "a calibration has measured a step");
        let terms: Vec<Vec<f64>> = steps.iter().map(|step| terms(&rows, &step.shape)).collect();
        let measured: Vec<f64> = steps.iter().map(|step| step.time.get()).collect();
        let least = LEAST_EXPECTED * quantile(&measured, 0.5);
        let bounded = |expected: f64| expected.max(least).max(f64::MIN_POSITIVE);
        let mut expected: Vec<f64> = measured.iter().copied().map(bounded).collect();
        let mut coefficients = Vec::new();
        for _ in 0..REWEIGHTED {
            let relative = terms.iter().zip(&measured).zip(&expected).map(|((terms, measured), expected)| {
                (terms.iter().map(|term| term / expected).collect(), measured / expected)
            });
            let (rows, values): (Vec<Vec<f64>>, Vec<f64>) = relative.unzip();
            coefficients = non_negative(&rows, &values);
            expected = terms.iter().map(|terms| bounded(sum_of_products(terms, &coefficients))).collect();
        }
        Self { rows, coefficients }
    }

    /// The time of a step.
    pub fn time(&self, shape: &StepShape) -> Seconds {
        Seconds::new(sum_of_products(&terms(&self.rows, shape), &self.coefficients))
    }
}

/// Numbers of rows between which f is linear: the smallest and the largest measured, and between them those that are at least half
/// as large again as the one before.
fn knots(mut measured: Vec<usize>) -> Vec<usize> {
    measured.sort_unstable();
    let mut knots: Vec<usize> = Vec::new();
    for rows in &measured {
        if knots.last().is_none_or(|last| 2 * rows >= 3 * last) {
            knots.push(*rows);
        }
    }
    match (knots.len(), measured.last()) {
        (2.., Some(largest)) => *knots.last_mut().expect("there are two") = *largest,
        (1, Some(largest)) if *largest > knots[0] => knots.push(*largest),
        _ => {}
    }
    knots
}

/// What the coefficients are multiplied by.
fn terms(rows: &[usize], shape: &StepShape) -> Vec<f64> {
    let mut terms = vec![1.0];
    for (index, ends) in rows.windows(2).enumerate() {
        let is_last = index + 2 == rows.len();
        let part = (shape.rows as f64 - ends[0] as f64) / (ends[1] - ends[0]) as f64;
        terms.push(part.clamp(0.0, if is_last { f64::INFINITY } else { 1.0 }));
    }
    terms.extend([shape.keys, shape.sampled, shape.parts].map(|count| count as f64));
    terms
}

fn sum_of_products(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// x ≥ 0 with the least Σ (row · x − value)², by coordinate descent.
fn non_negative(rows: &[Vec<f64>], values: &[f64]) -> Vec<f64> {
    let width = rows[0].len();
    let dot = |one: usize, other: usize| rows.iter().map(|row| row[one] * row[other]).sum::<f64>();
    let squares: Vec<Vec<f64>> =
        (0..width).map(|one| (0..width).map(|other| dot(one, other)).collect()).collect();
    let sums: Vec<f64> =
        (0..width).map(|at| rows.iter().zip(values).map(|(row, value)| row[at] * value).sum()).collect();
    let mut x = vec![0.0; width];
    for _ in 0..SWEEPS {
        let mut moved: f64 = 0.0;
        for at in (0..width).filter(|at| squares[*at][*at] > 0.0) {
            let rest: f64 =
                (0..width).filter(|other| *other != at).map(|other| squares[at][other] * x[other]).sum();
            let better = ((sums[at] - rest) / squares[at][at]).max(0.0);
            // Of the relative time: the coefficient's column has about this size.
            moved = moved.max((better - x[at]).abs() * squares[at][at].sqrt());
            x[at] = better;
        }
        if moved < 1e-9 {
            break;
        }
    }
    x
}

impl StepSource for FittedSteps {
    type Error = CliError;

    fn take(&mut self, queue: &Queue, works: &[Work]) -> Result<Seconds, CliError> {
        Ok(self.time(&StepShape::of(queue, works)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that take 1 ms, 0.1 ms a row up to 8 and 0.05 behind, 1 µs a key, 0.2 ms a logit and 0.03 a sequence.
    fn exact(shape: StepShape) -> CarriedOut {
        let rows = shape.rows as f64;
        let milliseconds = 1.0
            + 0.1 * rows.min(8.0)
            + 0.05 * (rows - 8.0).max(0.0)
            + 1e-3 * shape.keys as f64
            + 0.2 * shape.sampled as f64
            + 0.03 * shape.parts as f64;
        CarriedOut { shape, time: Seconds::new(1e-3 * milliseconds) }
    }

    fn shape([rows, parts, sampled, keys]: [usize; 4]) -> StepShape {
        StepShape { rows, parts, sampled, keys }
    }

    #[test]
    fn times_of_that_form_are_found_again() {
        let measured = [
            [1, 1, 1, 1],
            [1, 1, 0, 400],
            [8, 1, 1, 36],
            [8, 8, 8, 8],
            [8, 8, 8, 800],
            [8, 2, 0, 300],
            [32, 1, 1, 528],
            [32, 32, 32, 3200],
            [32, 4, 2, 5000],
        ];
        let fitted = FittedSteps::new(&measured.map(|counts| exact(shape(counts))));
        assert_eq!(fitted.rows, [1, 8, 32]);
        // Between, at and behind what was measured.
        for counts in [[5, 3, 2, 77], [8, 1, 0, 36], [20, 7, 7, 1234], [64, 2, 1, 2080]] {
            let (found, expected) = (fitted.time(&shape(counts)), exact(shape(counts)).time);
            assert!((found / expected - 1.0).abs() < 1e-4, "{counts:?}: {found:?} {expected:?}");
        }
    }

    #[test]
    fn knots_are_apart() {
        assert_eq!(knots(vec![1, 1, 2, 3, 4, 8, 9, 10, 64, 66, 130, 128]), [1, 2, 3, 8, 64, 130]);
        assert_eq!(knots(vec![4, 5]), [4, 5]);
        assert_eq!(knots(vec![4, 4]), [4]);
        assert_eq!(knots(Vec::new()), Vec::<usize>::new());
    }

    /// Whatever the noise, half of the steps are expected to take at least a third of what they took, and all together no
    /// more than three times what all took.
    #[test]
    fn noise_never_makes_a_run_free() {
        let shapes = [[1, 1, 1, 1], [1, 1, 0, 4], [2, 2, 2, 8], [4, 1, 1, 10], [4, 4, 4, 64], [12, 1, 1, 78]];
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(1_u32 << 31)
        };
        for case in 0..2_000 {
            let steps = shapes.map(|counts| {
                let exact = exact(shape(counts));
                // One step in ten takes fifty times as long; one in twenty is too short for the clock.
                let noise = match random() {
                    part if part < 0.1 => 50.0,
                    part if part < 0.15 => 0.0,
                    _ => 0.5 + random(),
                };
                CarriedOut { time: exact.time * noise, ..exact }
            });
            let fitted = FittedSteps::new(&steps);
            let seen = steps.iter().filter(|step| step.time > Seconds::ZERO);
            let ratios: Vec<f64> = seen.map(|step| fitted.time(&step.shape) / step.time).collect();
            let middle = quantile(&ratios, 0.5);
            assert!(middle > 0.3, "{case}: {middle} {steps:?} {fitted:?}");
            let took = |time: &dyn Fn(&CarriedOut) -> f64| steps.iter().map(time).sum::<f64>();
            let (expected, measured) =
                (took(&|step| fitted.time(&step.shape).get()), took(&|step| step.time.get()));
            assert!(expected <= 3.0 * measured, "{case}: {expected} {measured} {steps:?} {fitted:?}");
        }
    }

    #[test]
    fn no_coefficient_is_negative() {
        // Sampling seems to save time: noise.
        let steps = [[1, 1, 1, 1], [1, 1, 0, 1], [4, 4, 4, 4], [4, 4, 0, 4]].map(shape).map(|shape| {
            CarriedOut { shape, time: Seconds::new(1e-3 * (shape.rows as f64 - 0.1 * shape.sampled as f64)) }
        });
        let fitted = FittedSteps::new(&steps);
        assert!(fitted.coefficients.iter().all(|coefficient| *coefficient >= 0.0), "{fitted:?}");
        assert!(fitted.time(&shape([4, 4, 4, 4])) <= fitted.time(&shape([4, 4, 4, 400])));
    }
}
