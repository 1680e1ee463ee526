//! Gavel's form of Themis' finish-time fairness: the largest ρ, the time that a job takes over the time with an equal part of the
//! cluster to itself, is as small as possible.
//!
//! For a ρ, a job of age a and remaining steps m that would take T alone needs the speed m / (ρ T − a). The least ρ for which
//! such speeds exist is found by bisection. It changes as jobs age; it is computed anew when jobs come or go.
//! Source: Mahajan et al. 2020, NSDI, section 3; Narayanan et al. 2020, OSDI, section 4.2.

use super::shares::{Shares, by_shares, equal_share, shares};
use super::{Decide, Policy};
use crate::online::View;

/// Steps of the bisection, of the logarithm of ρ.
const STEPS: usize = 12;
/// The largest ρ that is tried, and the smallest.
const RANGE: (f64, f64) = (1e-2, 1e6);

/// Least largest ρ.
pub struct FinishTimeFairness;

impl Policy for FinishTimeFairness {
    fn name(&self) -> &'static str {
        "gavel-finish-time"
    }

    fn summary(&self) -> &'static str {
        "Gavel, Themis: no job ends much later than with an equal part of the cluster"
    }

    fn begin(&self) -> Box<dyn Decide> {
        by_shares(least_rho)
    }
}

fn least_rho(view: &View) -> Option<Shares> {
    let (mut low, mut high) = (libm::log(RANGE.0), libm::log(RANGE.1));
    let mut best = None;
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        match with(view, libm::exp(middle)) {
            Some(found) => (high, best) = (middle, Some(found)),
            None => low = middle,
        }
    }
    best
}

/// Shares with which no job has a larger ρ.
fn with(view: &View, rho: f64) -> Option<Shares> {
    let speed = |job: &crate::online::Active| {
        let alone = job.of.steps / equal_share(view, job);
        let left = rho * job.of.weight.recip() * alone - (view.now.get() - job.of.arrival.get());
        (left > 0.0).then_some(job.remaining / left)
    };
    let asked: Option<Vec<f64>> = view.jobs.iter().map(speed).collect();
    let (theta, shares) = shares(view, &asked?)?;
    (theta >= 1.0).then_some(shares)
}
