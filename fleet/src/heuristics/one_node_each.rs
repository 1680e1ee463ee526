//! Current practice: every job gets one node, or as few as it needs.

use super::{Heuristic, in_order, least};
use crate::instance::Instance;
use crate::objective::Objective;
use crate::schedule::Schedule;

/// One node for each job.
pub struct OneNodeEach;

impl Heuristic for OneNodeEach {
    fn name(&self) -> &'static str {
        "one-node-each"
    }

    fn summary(&self) -> &'static str {
        "every job on one node, or as few as it fits on, in the order of the file"
    }

    fn is_current_practice(&self) -> bool {
        true
    }

    fn schedule(&self, instance: &Instance, _objective: Objective) -> Schedule {
        let choice = |job| {
            least(instance, job, |one, other| {
                let nodes = instance.nodes_of(one).cmp(&instance.nodes_of(other));
                nodes.then(other.gpus.cmp(&one.gpus)).then(one.duration.cmp(&other.duration))
            })
        };
        in_order(instance, (0..instance.jobs.len()).map(choice).collect())
    }
}
