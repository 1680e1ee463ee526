//! Optimus: every job gets its fewest GPUs, in the order of arrival, then GPUs go one step at a time to the job whose remaining time
//! falls most for each.
//!
//! Source: Peng et al. 2018, EuroSys, section 4.1; placement from the emptiest node, the smallest job first, as in the simulator of
//! Pollux (github.com/petuum/adaptdl, branch osdi21-artifact).

use super::{Decide, Policy};
use crate::online::{Grant, Packing, View};

/// Marginal gains.
pub struct Optimus;

impl Policy for Optimus {
    fn name(&self) -> &'static str {
        "optimus"
    }

    fn summary(&self) -> &'static str {
        "elastic: GPUs one step at a time to the job that saves most time for each"
    }

    fn packing(&self) -> Packing {
        Packing::Emptiest
    }

    fn begin(&self) -> Box<dyn Decide> {
        Box::new(Self)
    }
}

impl Decide for Optimus {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        let choices: Vec<_> = view.jobs.iter().map(|job| view.choices(job)).collect();
        let mut free = view.capacity();
        // The choice of each job by its number; `None`: it waits.
        let mut now: Vec<Option<usize>> = vec![None; choices.len()];
        for (job, all) in choices.iter().enumerate() {
            let fits = (0..all.len()).filter(|index| free[all[*index].0] >= all[*index].1);
            now[job] = fits.min_by(|one, other| {
                let (one, other) = (all[*one], all[*other]);
                one.1.cmp(&other.1).then(other.2.total_cmp(&one.2))
            });
            if let Some(index) = now[job] {
                free[all[index].0] -= all[index].1;
            }
        }
        let next = |job: usize, index: usize| {
            let (kind, gpus, speed) = choices[job][index];
            let more = choices[job].get(index + 1).filter(|more| more.0 == kind)?;
            let time = |speed: f64| view.jobs[job].remaining / speed;
            Some(((time(speed) - time(more.2)) / (more.1 - gpus) as f64, more.1 - gpus, kind))
        };
        loop {
            let steps = (0..now.len()).filter_map(|job| {
                let (gain, more, kind) = next(job, now[job]?)?;
                (more <= free[kind]).then_some((gain, job, more, kind))
            });
            let best = steps.max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
            let Some((_, job, more, kind)) = best else { break };
            free[kind] -= more;
            now[job] = now[job].map(|index| index + 1);
        }
        let of = |job: usize| {
            let (kind, gpus, _) = choices[job][now[job]?];
            Some(Grant { job: view.jobs[job].job, kind, gpus })
        };
        let mut grants: Vec<Grant> = (0..now.len()).filter_map(of).collect();
        grants.sort_by_key(|grant| grant.gpus);
        grants
    }
}
