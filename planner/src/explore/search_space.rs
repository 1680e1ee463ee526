//! All layouts with their bounds.

use super::branch_and_bound::Seen;
use super::promise::Promise;
use crate::bound::{LeastWork, LowerBounds};
use crate::candidate::Candidate;
use crate::cost::{CachedCosts, CostModel, Outlooks};
use crate::question::Question;
use crate::space::LegalCandidates;
use crate::stages::Staged;
use crate::verdict::PlannerError;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};

/// All layouts with their bounds.
pub(crate) struct SearchSpace<'a> {
    pub legal: LegalCandidates<'a>,
    pub bounds: LowerBounds<'a>,
    /// By layout: no step with it is expected to be faster. Of the model's sizes alone.
    pub least_times: Vec<Seconds>,
    /// The layouts, the most promising first.
    by_promise: Vec<usize>,
    /// What a step with the most promising one takes about.
    promised: Seconds,
    /// Whether there are several orders of ranks.
    pub(super) several_orders: bool,
    /// What came of candidates that differ in the order of ranks alone; `None` where that was stopped.
    pub(super) staged: Mutex<HashMap<String, Arc<OnceLock<Option<Staged>>>>>,
}

impl<'a> SearchSpace<'a> {
    /// Prepares a search.
    ///
    /// # Errors
    /// As `plan`.
    pub fn new(question: &'a Question) -> Result<Self, PlannerError> {
        Self::sharing(question, CachedCosts::new(&question.cluster))
    }

    /// Prepares a search with costs that others know too, of the question's cluster.
    ///
    /// # Errors
    /// As `plan`.
    pub fn sharing(question: &'a Question, costs: CachedCosts<'a>) -> Result<Self, PlannerError> {
        let legal = LegalCandidates::of(question)?;
        let model = CostModel::by_need(question, &legal.layouts, costs);
        let (work, promise) = (LeastWork::new(question), Promise::new(question));
        let times = |layout: &Candidate| {
            let expected = |time: Seconds| model.outlook(layout).expected(time);
            (expected(work.bound(layout)), expected(promise.time(layout, &work)))
        };
        let (least_times, promised): (Vec<Seconds>, Vec<Seconds>) =
            legal.layouts.par_iter().map(times).unzip();
        let mut by_promise: Vec<usize> = (0..legal.layouts.len()).collect();
        by_promise.sort_by(|a, b| promised[*a].get().total_cmp(&promised[*b].get()));
        let promised = by_promise.first().map_or(Seconds::ZERO, |index| promised[*index]);
        let several_orders = legal.layouts.iter().any(|layout| !layout.mesh.order.is_default());
        let (bounds, staged) = (LowerBounds::new(model), Mutex::default());
        Ok(Self { legal, bounds, least_times, by_promise, promised, several_orders, staged })
    }

    /// The layouts, the most promising first.
    pub(super) fn by_promise(&self) -> &[usize] {
        &self.by_promise
    }

    /// What a step takes about, and what no step is expected to be below: both by sizes alone.
    pub fn rough_times(&self) -> (Seconds, Seconds) {
        let least = self.least_times.iter().copied().reduce(Seconds::min);
        (self.promised, least.unwrap_or(Seconds::ZERO))
    }

    /// A time that no step is expected to be below times the GPUs that it has, however many nodes there are.
    pub fn least_gpu_time(&self) -> Seconds {
        let work = LeastWork::new(self.question());
        let mut precisions: Vec<&Candidate> = self.legal.layouts.iter().collect();
        precisions.sort_by_key(|layout| layout.precision);
        precisions.dedup_by_key(|layout| layout.precision);
        let least = |layout: &Candidate| {
            work.gpu_time(layout.precision) * Outlooks::least_time(self.question(), layout)
        };
        precisions.into_iter().map(least).reduce(Seconds::min).unwrap_or(Seconds::ZERO)
    }

    /// Those of some candidates that are its own.
    pub fn own(&self, seen: Vec<Seen>) -> Vec<Seen> {
        let is_own = |candidate: &Candidate| {
            let layout = candidate.layout();
            self.legal.layouts.contains(&layout)
                && self.legal.candidates(&layout).iter().any(|own| own == *candidate)
        };
        seen.into_iter().filter(|seen| is_own(&seen.candidate)).collect()
    }

    /// What its candidates cost.
    pub fn model(&self) -> &CostModel<'a> {
        &self.bounds.model
    }

    /// The question that it answers.
    pub fn question(&self) -> &'a Question {
        self.bounds.model.question
    }

    /// Any plan that answers the question, without stages: bounds are asked of it with a candidate's choices.
    pub fn any_plan(&self) -> Plan {
        self.legal.layouts[0].plan(self.question(), Vec::new())
    }

    /// All candidates in the order of enumeration.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.legal.layouts.iter().flat_map(|layout| self.legal.candidates(layout).iter())
    }

    /// The mean over the cluster's GPUs of the memory that plans of a candidate may use.
    pub fn mean_room(&self, candidate: &Candidate) -> Bytes {
        self.model().outlook(candidate).room(self.question().cluster.mean_memory())
    }

    /// A time that no plan of the candidate is expected to be below, and memory that none of its plans needs less than. `plan` is any
    /// plan that answers the question; it gets the candidate's choices.
    pub fn limits(&self, candidate: &Candidate, plan: &mut Plan) -> (Seconds, Bytes) {
        candidate.apply_to(plan);
        let expected = self.model().outlook(candidate).expected(self.bounds.step(candidate, plan));
        (expected, self.bounds.memory(candidate, plan))
    }
}
