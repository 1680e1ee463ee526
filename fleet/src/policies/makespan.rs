//! Gavel's makespan policy: all jobs that are there could end together as early as possible; r_j is what is left of a job, θ = 1 / T.
//!
//! Source: Narayanan et al. 2020, OSDI, section 4.2.

use super::shares::{Shares, by_shares, shares};
use super::{Decide, Policy};
use crate::online::View;

/// Least time until all have ended.
pub struct Makespan;

impl Policy for Makespan {
    fn name(&self) -> &'static str {
        "gavel-makespan"
    }

    fn summary(&self) -> &'static str {
        "Gavel: all jobs that are there end as early as possible"
    }

    fn begin(&self) -> Box<dyn Decide> {
        by_shares(least_makespan)
    }
}

fn least_makespan(view: &View) -> Option<Shares> {
    let asked: Vec<f64> = view.jobs.iter().map(|job| job.remaining).collect();
    shares(view, &asked).map(|(_, shares)| shares)
}
