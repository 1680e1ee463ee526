//! GPUs go one step at a time to the job that gains most from them, as Optimus shares them among the jobs that are there.
//!
//! Source: Peng et al. 2018, EuroSys, section 4.1: marginal gain = saved time / added GPUs. Optimus shares anew at intervals;
//! here jobs keep what they have, and those that get nothing wait.

use super::{Heuristic, by_duration};
use crate::instance::Instance;
use crate::list::{Sequence, schedule};
use crate::objective::Objective;
use crate::schedule::Schedule;

/// The largest gain first.
pub struct OptimusGreedy;

impl Heuristic for OptimusGreedy {
    fn name(&self) -> &'static str {
        "optimus-greedy"
    }

    fn summary(&self) -> &'static str {
        "GPUs one step at a time to the job that saves most time for each"
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let jobs = &instance.jobs;
        let fewest = |job: usize| super::least(instance, job, |one, other| one.gpus.cmp(&other.gpus));
        let mut choices: Vec<usize> = (0..jobs.len()).map(fewest).collect();
        let used: usize = (0..jobs.len()).map(|job| jobs[job].choices[choices[job]].gpus).sum();
        let mut left = instance.gpus().saturating_sub(used);
        loop {
            let gains = (0..jobs.len()).flat_map(|job| {
                let now = &jobs[job].choices[choices[job]];
                let more = jobs[job].choices.iter().enumerate().filter(move |(_, choice)| {
                    choice.gpus > now.gpus
                        && choice.gpus - now.gpus <= left
                        && choice.duration < now.duration
                        && instance.has_room(job, choice)
                });
                more.map(move |(index, choice)| {
                    let gain = (now.duration - choice.duration) as f64 / (choice.gpus - now.gpus) as f64;
                    (gain, job, index, choice.gpus - now.gpus)
                })
            });
            let best = gains
                .max_by(|one, other| one.0.total_cmp(&other.0).then((other.1, other.2).cmp(&(one.1, one.2))));
            let Some((_, job, index, more)) = best else { break };
            choices[job] = index;
            left -= more;
        }
        let order = by_duration(instance, &choices);
        schedule(instance, &Sequence { order, choices })
    }
}
