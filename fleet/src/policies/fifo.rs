//! First in, first out: jobs start in their order and keep their GPUs; the first that has no room holds up those behind it.

use super::{Decide, Policy, in_order, kept, room};
use crate::online::{Grant, View};

/// First in, first out.
pub struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn summary(&self) -> &'static str {
        "in the order of weight and arrival; the first without room holds up the others"
    }

    fn begin(&self) -> Box<dyn Decide> {
        Box::new(Self)
    }
}

impl Decide for Fifo {
    fn decide(&mut self, view: &View) -> Vec<Grant> {
        let (mut grants, mut free) = kept(view);
        for job in in_order(view).into_iter().filter(|job| job.held.is_none()) {
            let Some(grant) = room(view, job, &free) else { break };
            free[grant.kind] -= grant.gpus;
            grants.push(grant);
        }
        grants
    }
}
