//! Tiresias: least attained service, discretised into two queues. Jobs begin in the first; one that has held 16 GPU-hours moves to
//! the end of the second, which gets what the first leaves. Within a queue the order is that of arrival in it; a job that does not
//! fit is passed over, and a running one that has no room is preempted.
//!
//! Source: Gu et al. 2019, NSDI, section 3; queues, threshold, and placement from the emptiest node as in the simulator of Pollux
//! (github.com/petuum/adaptdl, branch osdi21-artifact, simulator/tiresias.py), whose results this is compared with.

use super::{Decide, Policy, room};
use crate::online::{Grant, Packing, View};
use std::cmp::Reverse;

/// GPU-seconds after which a job is in the second queue.
const THRESHOLD: f64 = 16.0 * 3600.0;

/// Discretised least attained service.
pub struct Tiresias;

impl Policy for Tiresias {
    fn name(&self) -> &'static str {
        "tiresias"
    }

    fn summary(&self) -> &'static str {
        "two queues by attained GPU-time, preemptive; jobs of fixed size"
    }

    fn packing(&self) -> Packing {
        Packing::Emptiest
    }

    fn begin(&self) -> Box<dyn Decide> {
        Box::new(Queues { demoted: Vec::new() })
    }
}

/// The second queue.
struct Queues {
    demoted: Vec<usize>,
}

impl Decide for Queues {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        let mut jobs: Vec<_> = view.jobs.iter().collect();
        for job in &jobs {
            let service = job.executed.get() * job.of.gpus as f64;
            if service >= THRESHOLD && !self.demoted.contains(&job.job) {
                self.demoted.push(job.job);
            }
        }
        self.demoted.retain(|job| jobs.iter().any(|other| other.job == *job));
        let weight = |job: usize| Reverse((1e6 * jobs[job].of.weight) as u64);
        let place = |job: usize| self.demoted.iter().position(|other| *other == jobs[job].job);
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_key(|job| (place(*job).is_some(), weight(*job), place(*job)));
        jobs = order.into_iter().map(|job| jobs[job]).collect();
        let mut free = view.capacity();
        let mut grants = Vec::new();
        for job in jobs {
            let held = job.held.filter(|held| free[held.kind] >= held.gpus);
            if let Some(grant) = held.or_else(|| room(view, job, &free)) {
                free[grant.kind] -= grant.gpus;
                grants.push(grant);
            }
        }
        grants
    }
}
