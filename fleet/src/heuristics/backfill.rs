//! The jobs in the order of the file with the plan of least GPU-time, each in the earliest gap that is large enough: no job delays
//! one before it (conservative backfill).
//!
//! Source: Mu'alem & Feitelson 2001, IEEE Transactions on Parallel and Distributed Systems 12(6), 529–543.

use super::{Heuristic, least};
use crate::gaps::schedule_in_gaps;
use crate::instance::Instance;
use crate::list::Sequence;
use crate::objective::Objective;
use crate::schedule::Schedule;

/// Conservative backfill.
pub struct Backfill;

impl Heuristic for Backfill {
    fn name(&self) -> &'static str {
        "backfill"
    }

    fn summary(&self) -> &'static str {
        "the plan of least GPU-time of every job, in the first gap that is large enough"
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let choice = |job| {
            least(instance, job, |one, other| {
                one.area().cmp(&other.area()).then(one.duration.cmp(&other.duration))
            })
        };
        let choices: Vec<usize> = (0..instance.jobs.len()).map(choice).collect();
        schedule_in_gaps(instance, &Sequence { order: (0..choices.len()).collect(), choices })
    }
}
