//! The order in which pipeline ranks run their passes.

use super::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::schedule::{SCHEDULES, Schedule};

/// The usual schedules, or every one after whose steps all weights are up to date; others train another way and must be
/// pinned.
///
/// Without a pipeline all schedules are the same but for the memory they take: 1F1B takes the least.
pub(super) struct Order;

impl Dimension for Order {
    fn key(&self) -> &'static str {
        "schedule"
    }

    fn summary(&self) -> &'static str {
        "pipeline schedule"
    }

    fn values(&self) -> Values {
        Values::Names(SCHEDULES.iter().map(|schedule| schedule.name()).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let known: Vec<&'static str> = SCHEDULES.iter().map(|schedule| schedule.name()).collect();
        let tried = |schedule: &&&dyn Schedule| match given.is_whole() {
            true => schedule.flushes(),
            false => schedule.searched(),
        };
        let usual = SCHEDULES.iter().filter(tried);
        let tried = match draft.mesh.pipeline {
            1 => vec!["1f1b"],
            _ => usual.map(|schedule| schedule.name()).collect(),
        };
        let names = given.names(&known, &tried).into_iter();
        names.map(|schedule| Candidate { schedule, ..*draft }).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.schedule.into()
    }
}
