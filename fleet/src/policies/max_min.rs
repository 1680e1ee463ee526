//! Gavel's max-min fairness: the job that is worst off, in speed over that with an equal part of the cluster and over its weight, is
//! as well off as possible.
//!
//! Source: Narayanan et al. 2020, OSDI, section 4.1.

use super::shares::{Shares, by_shares, equal_share, shares};
use super::{Decide, Policy};
use crate::online::View;

/// Max-min fairness over kinds of nodes.
pub struct MaxMin;

impl Policy for MaxMin {
    fn name(&self) -> &'static str {
        "gavel-max-min"
    }

    fn summary(&self) -> &'static str {
        "Gavel: the slowest job, against an equal part of the cluster, is as fast as possible"
    }

    fn begin(&self) -> Box<dyn Decide> {
        by_shares(max_min)
    }
}

fn max_min(view: &View) -> Option<Shares> {
    let asked: Vec<f64> = view.jobs.iter().map(|job| job.of.weight * equal_share(view, job)).collect();
    shares(view, &asked).map(|(_, shares)| shares)
}
