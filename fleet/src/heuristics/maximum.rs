//! Every job runs as fast as it can.

use super::{Heuristic, in_order, least};
use crate::instance::Instance;
use crate::objective::Objective;
use crate::schedule::Schedule;

/// The fastest choice of each job.
pub struct Maximum;

impl Heuristic for Maximum {
    fn name(&self) -> &'static str {
        "max"
    }

    fn summary(&self) -> &'static str {
        "the fastest plan of every job, in the order of the file"
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let choice = |job| {
            least(instance, job, |one, other| {
                one.duration.cmp(&other.duration).then(one.area().cmp(&other.area()))
            })
        };
        in_order(instance, (0..instance.jobs.len()).map(choice).collect())
    }
}
