//! A robust fit of a few bounded unknowns to many residuals. It is free of units and knows nothing of training.

use argmin::core::{CostFunction, Error, Executor, Gradient};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;

/// A residual that is linear in the unknowns: r(x) = `at_zero` + Σ slope · x.
#[derive(Debug, Clone, PartialEq)]
pub struct Residual {
    /// With all unknowns at 0.
    pub at_zero: f64,
    /// The unknowns that it depends on, by index, and how much.
    pub slopes: Vec<(usize, f64)>,
    /// How much it counts.
    pub weight: f64,
}

impl Residual {
    /// Its value.
    pub fn at(&self, x: &[f64]) -> f64 {
        self.at_zero + self.slopes.iter().map(|(index, slope)| slope * x[*index]).sum::<f64>()
    }
}

/// Residuals well beyond this count next to nothing, smaller ones by their square.
const KNEE: f64 = 0.1;

/// Cost of an unknown at the end of its range, in squares of the knee.
const PULL: f64 = 1.0;

/// Most steps of the solver.
const STEPS: u64 = 300;

/// The unknowns that make the residuals small, each in its range, which contains 0.
///
/// min Σ w ρ(r(x)) + κ Σ (x / h)², ρ(r) = δ²/2 · ln(1 + (r/δ)²), δ the knee, h half of the range's width
///
/// ρ (Cauchy's: Holland & Welsch 1977, Communications in Statistics A6(9), 813–827) gives outliers, such as a run on a broken
/// machine, next to no weight; the second sum keeps unknowns that no residual depends on at 0. Ranges are kept by
/// x = low + (high − low) / (1 + exp(−u)). L-BFGS from x = 0.
pub fn fit(residuals: &[Residual], ranges: &[(f64, f64)]) -> Vec<f64> {
    let problem = Problem { residuals, ranges };
    let start: Vec<f64> = ranges.iter().map(|(low, high)| (-low / high).ln()).collect();
    let search = MoreThuenteLineSearch::new();
    let solver = LBFGS::new(search, 7);
    let run =
        Executor::new(&problem, solver).configure(|state| state.param(start.clone()).max_iters(STEPS)).run();
    // If the line search fails, its last point is the best known one; without any it is the start.
    let best = run.ok().and_then(|result| result.state.best_param).unwrap_or(start);
    problem.unknowns(&best)
}

struct Problem<'a> {
    residuals: &'a [Residual],
    ranges: &'a [(f64, f64)],
}

impl Problem<'_> {
    fn unknowns(&self, free: &[f64]) -> Vec<f64> {
        let within = |((low, high), free): (&(f64, f64), &f64)| low + (high - low) / (1.0 + (-free).exp());
        self.ranges.iter().zip(free).map(within).collect()
    }

    fn half_width(&self, index: usize) -> f64 {
        (self.ranges[index].1 - self.ranges[index].0) / 2.0
    }

    fn pull(&self) -> f64 {
        PULL * KNEE * KNEE
    }
}

impl CostFunction for &Problem<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, free: &Self::Param) -> Result<f64, Error> {
        let x = self.unknowns(free);
        let loss = |residual: &Residual| {
            residual.weight * KNEE * KNEE * (1.0 + (residual.at(&x) / KNEE).powi(2)).ln() / 2.0
        };
        let away = x.iter().enumerate().map(|(index, x)| (x / self.half_width(index)).powi(2));
        Ok(self.residuals.iter().map(loss).sum::<f64>() + self.pull() * away.sum::<f64>())
    }
}

impl Gradient for &Problem<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, free: &Self::Param) -> Result<Vec<f64>, Error> {
        let x = self.unknowns(free);
        let mut gradient: Vec<f64> = x
            .iter()
            .enumerate()
            .map(|(index, x)| 2.0 * self.pull() * x / self.half_width(index).powi(2))
            .collect();
        for residual in self.residuals {
            let value = residual.at(&x);
            let by_value = residual.weight * value / (1.0 + (value / KNEE).powi(2));
            residual.slopes.iter().for_each(|(index, slope)| gradient[*index] += by_value * slope);
        }
        for ((gradient, x), (low, high)) in gradient.iter_mut().zip(&x).zip(self.ranges) {
            *gradient *= (x - low) * (high - x) / (high - low);
        }
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residual(at_zero: f64, slopes: &[(usize, f64)]) -> Residual {
        Residual { at_zero, slopes: slopes.to_vec(), weight: 1.0 }
    }

    #[test]
    fn the_median_counts_and_not_the_outlier() {
        // Nine residuals that ask for x = 0.2 and one for x = −3.
        let mut residuals = vec![residual(-0.2, &[(0, 1.0)]); 90];
        residuals.extend(vec![residual(3.0, &[(0, 1.0)]); 10]);
        let x = fit(&residuals, &[(-1.0, 1.0)]);
        assert!((x[0] - 0.2).abs() < 0.01, "{x:?}");
    }

    #[test]
    fn ranges_hold_and_unknowns_without_residuals_stay() {
        let residuals = vec![residual(-2.0, &[(0, 1.0)]); 50];
        let x = fit(&residuals, &[(-0.5, 0.3), (-1.0, 2.0)]);
        assert!((0.28..=0.3).contains(&x[0]), "{x:?}");
        assert!(x[1].abs() < 1e-3, "{x:?}");
    }

    #[test]
    fn two_unknowns_are_separated() {
        // x + y = 0.3 and x − y = 0.1: x = 0.2, y = 0.1.
        let mut residuals = vec![residual(-0.3, &[(0, 1.0), (1, 1.0)]); 50];
        residuals.extend(vec![residual(-0.1, &[(0, 1.0), (1, -1.0)]); 50]);
        let x = fit(&residuals, &[(-1.0, 1.0), (-1.0, 1.0)]);
        assert!((x[0] - 0.2).abs() < 0.01 && (x[1] - 0.1).abs() < 0.01, "{x:?}");
    }
}
