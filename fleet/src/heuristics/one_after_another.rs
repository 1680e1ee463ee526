//! Current practice: every job gets the whole cluster, or as much of it as it can use, and the next one begins after it.

use super::{Heuristic, least};
use crate::instance::Instance;
use crate::list::{Sequence, place};
use crate::objective::Objective;
use crate::schedule::Schedule;

/// One job after the other.
pub struct OneAfterAnother;

impl Heuristic for OneAfterAnother {
    fn name(&self) -> &'static str {
        "one-after-another"
    }

    fn summary(&self) -> &'static str {
        "one job after the other, each on as many GPUs as it can use"
    }

    fn is_current_practice(&self) -> bool {
        true
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let most = |job| {
            least(instance, job, |one, other| {
                other.gpus.cmp(&one.gpus).then(one.duration.cmp(&other.duration))
            })
        };
        let choices: Vec<usize> = (0..instance.jobs.len()).map(most).collect();
        // Each is placed on an empty cluster, after the one before it.
        let order = instance.sorted().unwrap_or_default();
        let sequence = Sequence { order: order.clone(), choices };
        let mut placed = place(instance, &sequence, &[]);
        let mut time = 0;
        let mut ends = vec![0; instance.jobs.len()];
        for job in order {
            let entry = placed.iter_mut().find(|entry| entry.job == job).expect("every job is placed");
            let duration = entry.end - entry.start;
            entry.start = time.max(instance.ready(job, &ends));
            entry.end = entry.start + duration;
            (time, ends[job]) = (entry.end, entry.end);
        }
        Schedule::with_gpus(instance, placed)
    }
}
