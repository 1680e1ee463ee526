//! All layouts with their bounds.

use super::space_size::unseen;
use crate::bound::LowerBounds;
use crate::candidate::Candidate;
use crate::cost::{CachedCosts, CostModel};
use crate::question::Question;
use crate::space::LegalCandidates;
use crate::stages::Staged;
use crate::verdict::{PlannerError, Progress, Search};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};

/// All layouts with their bounds.
pub(crate) struct SearchSpace<'a> {
    pub legal: LegalCandidates<'a>,
    pub bounds: LowerBounds<'a>,
    /// By layout: no step with it is expected to be faster.
    pub layout_bounds: Vec<Seconds>,
    /// Whether there are several orders of ranks.
    pub(super) several_orders: bool,
    /// What came of candidates that differ in the order of ranks alone.
    pub(super) staged: Mutex<HashMap<String, Arc<OnceLock<Staged>>>>,
}

impl<'a> SearchSpace<'a> {
    /// Prepares a search, as long as that takes.
    ///
    /// # Errors
    /// As `plan`.
    pub fn new(question: &'a Question) -> Result<Self, PlannerError> {
        Ok(Self::within(question, &|| false, &|_| {})?.expect("there is no limit"))
    }

    /// Prepares a search, or returns how far it came, if the time is up before.
    pub fn within(
        question: &'a Question,
        out_of_time: &(dyn Fn() -> bool + Sync),
        watch: &(dyn Fn(Progress) + Sync),
    ) -> Result<Result<Self, Search>, PlannerError> {
        let legal = LegalCandidates::of(question)?;
        let total = legal.layouts.len();
        watch(Progress { phase: "bounds", done: 0, total });
        let costs = CachedCosts::new(&question.cluster);
        let Some(model) = CostModel::within(question, &legal.layouts, costs, out_of_time)? else {
            return Ok(Err(unseen(question, &legal)));
        };
        let bounds = LowerBounds::new(model);
        let bound = |layout: &Candidate| bounds.model.outlook(layout).expected(bounds.layout(layout));
        let layout_bounds = legal.layouts.par_iter().map(bound).collect();
        watch(Progress { phase: "bounds", done: total, total });
        let several_orders = legal.layouts.iter().any(|layout| !layout.mesh.order.is_default());
        Ok(Ok(Self { legal, bounds, layout_bounds, several_orders, staged: Mutex::default() }))
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
        self.legal.layouts.iter().flat_map(|layout| self.legal.candidates(layout))
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
