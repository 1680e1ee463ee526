//! The longest job first, each with the choice that needs the least GPU-time.
//!
//! Source: Graham 1969, SIAM Journal on Applied Mathematics 17(2), 416–429.

use super::{Heuristic, by_duration, least};
use crate::instance::Instance;
use crate::list::{Sequence, schedule};
use crate::objective::Objective;
use crate::schedule::Schedule;

/// Longest processing time first.
pub struct LongestFirst;

impl Heuristic for LongestFirst {
    fn name(&self) -> &'static str {
        "longest-first"
    }

    fn summary(&self) -> &'static str {
        "the plan of least GPU-time of every job, the longest job first"
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let choice = |job| {
            least(instance, job, |one, other| {
                one.area().cmp(&other.area()).then(one.duration.cmp(&other.duration))
            })
        };
        let choices: Vec<usize> = (0..instance.jobs.len()).map(choice).collect();
        let order = by_duration(instance, &choices);
        schedule(instance, &Sequence { order, choices })
    }
}
