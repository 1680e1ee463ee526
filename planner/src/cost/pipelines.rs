//! What candidates with the same schedule have in common, each distinct part computed once.

use super::in_flight::InFlight;
use super::shared_cache::SharedCache;
use crate::candidate::Candidate;
use std::collections::BTreeMap;
use std::sync::Arc;
use trainwright_spec::schedule::{
    Action, ActionKind, ActionLists, PipelineShape, SCHEDULES, Schedule, schedule, shorter_step,
};

/// What kind of pipeline a schedule makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PipelineKind {
    /// Whether backward runs in halves.
    pub halves: bool,
    /// Copies of every stage.
    pub copies: usize,
    /// Whether a step begins and ends with an empty pipeline that is filled from the first rank on.
    pub ramps: bool,
    /// Whether a forward and a backward may run as one joint pass, each of which hides the other's communication.
    pub joint: bool,
}

impl PipelineKind {
    fn of(schedule: &dyn Schedule) -> Self {
        let sizes = [(2, 1), (2, 2), (4, 1), (4, 2)].into_iter();
        let shapes = sizes.flat_map(|(ranks, virtual_stages)| {
            [1, 2, 4].map(|times| PipelineShape { ranks, virtual_stages, microbatches: times * ranks })
        });
        let lists = shapes.filter(|shape| schedule.check(*shape).is_ok()).map(|shape| schedule.lists(shape));
        let lists: Vec<ActionLists> = lists.collect();
        let input = |action: &Action| action.kind == ActionKind::Input;
        let halves = lists.iter().any(|lists| lists.ranks.iter().flatten().any(input));
        let joint = lists.iter().flat_map(|lists| &lists.joint).any(|joint| !joint.is_empty());
        let copies = schedule.copies();
        Self { halves, copies, ramps: copies == 1 && schedule.flushes(), joint }
    }
}

/// Name and sizes of a pipeline.
pub(crate) type PipelineKey = (&'static str, PipelineShape);

/// The pipelines of a question's candidates.
pub(crate) struct Pipelines {
    kinds: BTreeMap<&'static str, PipelineKind>,
    in_flight: SharedCache<PipelineKey, Arc<InFlight>>,
    lists: SharedCache<PipelineKey, Arc<ActionLists>>,
    global_batch: usize,
}

impl Pipelines {
    pub fn new(global_batch: usize) -> Self {
        let kinds = SCHEDULES.iter().map(|schedule| (schedule.name(), PipelineKind::of(*schedule))).collect();
        Self { kinds, in_flight: SharedCache::default(), lists: SharedCache::default(), global_batch }
    }

    /// The schedules with joint passes.
    pub fn joint(&self) -> impl Iterator<Item = &'static str> {
        self.kinds.iter().filter(|(_, kind)| kind.joint).map(|(name, _)| *name)
    }

    /// The kind of a candidate's pipeline.
    pub fn kind(&self, candidate: &Candidate) -> PipelineKind {
        self.kinds[candidate.schedule]
    }

    /// What the ranks of a schedule do, pass by pass: no two passes joined.
    pub fn lists(&self, name: &'static str, shape: PipelineShape) -> Arc<ActionLists> {
        self.lists.get_or((name, shape), || {
            let schedule = schedule(name).expect("candidates have schedules of the registry");
            Arc::new(schedule.lists(shape).ranks.into_iter().collect())
        })
    }

    /// Microbatches that the candidate's stages have in flight at their ranks' peaks.
    pub fn in_flight(&self, candidate: &Candidate) -> Arc<InFlight> {
        self.in_flight_of(candidate, candidate.shape(self.global_batch))
    }

    /// A smaller number of microbatches with which a candidate's stages have as many of them in flight at their peaks, if
    /// there is one.
    pub fn shorter(&self, candidate: &Candidate) -> Option<usize> {
        let shape = candidate.shape(self.global_batch);
        let few = enough_microbatches(candidate, shape);
        let alike = || {
            let shorter = self.in_flight_of(candidate, PipelineShape { microbatches: few, ..shape });
            shorter.by_stage == self.in_flight(candidate).by_stage
        };
        (few < shape.microbatches && alike()).then_some(few)
    }

    fn in_flight_of(&self, candidate: &Candidate, shape: PipelineShape) -> Arc<InFlight> {
        let compute = || Arc::new(InFlight::of(candidate.schedule(), shape));
        self.in_flight.get_or((candidate.schedule, shape), compute)
    }
}

/// As many microbatches as a step has, or fewer after which its schedule has repeated.
pub(crate) fn enough_microbatches(candidate: &Candidate, shape: PipelineShape) -> usize {
    shorter_step(candidate.schedule(), shape).unwrap_or(shape).microbatches
}
