//! Every job gets the fewest GPUs.

use super::{Heuristic, in_order, least};
use crate::instance::Instance;
use crate::objective::Objective;
use crate::schedule::Schedule;

/// The fewest GPUs for each job.
pub struct Minimum;

impl Heuristic for Minimum {
    fn name(&self) -> &'static str {
        "min"
    }

    fn summary(&self) -> &'static str {
        "every job on the fewest GPUs that it fits on, in the order of the file"
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let choice = |job| {
            least(instance, job, |one, other| {
                one.gpus.cmp(&other.gpus).then(one.duration.cmp(&other.duration))
            })
        };
        in_order(instance, (0..instance.jobs.len()).map(choice).collect())
    }
}
