//! Pollux, as far as a table of speeds goes: the power mean with p = −1 of the jobs' speed-ups over their fewest GPUs is as large as
//! possible, where a job that moves counts less by its restart.
//!
//! What is missing: Pollux changes batch sizes and counts statistical efficiency (goodput); a table of speeds holds for one batch
//! size. Its genetic search is an exact split here. A job that never ran gets at most one step more than its fewest GPUs, others at
//! most twice the most that they had, as there.
//! Source: Qiao et al. 2021, OSDI, section 4.2.

use super::split::{grants, split};
use super::{Decide, Policy};
use crate::online::{Active, Grant, View};

/// What a job that waits adds to the sum of inverse speed-ups: more than any that runs.
const WAITING: f64 = 1e3;

/// Power mean of speed-ups.
pub struct Pollux;

impl Policy for Pollux {
    fn name(&self) -> &'static str {
        "pollux"
    }

    fn summary(&self) -> &'static str {
        "elastic: harmonic mean of speed-ups; batch sizes stay, unlike in Pollux itself"
    }

    fn begin(&self) -> Box<dyn Decide> {
        Box::new(Self)
    }
}

impl Decide for Pollux {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        let worth: Vec<_> = view.jobs.iter().map(|job| worth(view, job)).collect();
        grants(view, &split(&view.capacity(), &worth))
    }
}

fn worth(view: &View, job: &Active) -> Vec<super::split::Worth> {
    let choices = view.choices(job);
    let slowest = choices.iter().map(|choice| choice.2).fold(f64::INFINITY, f64::min);
    let most = (2 * job.most_held).max(job.of.range.0 + 1);
    let fewest = choices.iter().map(|choice| choice.1).min().unwrap_or(1);
    let all = choices.iter().filter(|choice| choice.1 <= most.max(fewest));
    all.map(|(kind, gpus, speed)| {
        let keeps = stay(view, job, (*kind, *gpus));
        (*kind, *gpus, WAITING - 1.0 / (speed / slowest * keeps))
    })
    .collect()
}

/// The part of its time in which a job made steps, if it changes now and as often as until now: (age − restarts · delay) /
/// (age + delay); 1 for a job that stays as it is.
pub fn stay(view: &View, job: &Active, choice: (usize, usize)) -> f64 {
    let stays = job.held.is_some_and(|held| (held.kind, held.gpus) == choice);
    let (age, delay) = (view.now.get() - job.of.arrival.get(), job.restart.get());
    match stays || job.held.is_none() || age + delay <= 0.0 {
        true => 1.0,
        false => ((age - job.restarts as f64 * delay) / (age + delay)).max(1e-2),
    }
}
