//! What a question's candidates cost, in one place: all that bounds and partitions are made of.

use super::cached_costs::CachedCosts;
use super::layer_cost::ModelCost;
use super::layout_costs::{Alternatives, ByKind, LayoutCosts, least_block_times};
use super::outlooks::Outlooks;
use super::pipelines::Pipelines;
use crate::candidate::Candidate;
use crate::question::{Breadth, Question};
use crate::risk::Outlook;
use rayon::prelude::*;
use trainwright_sim::Deadlock;
use trainwright_spec::model::{BlockRun, Mlp};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// The costs of a question's candidates.
pub(crate) struct CostModel<'a> {
    pub question: &'a Question,
    /// Of ops.
    pub costs: CachedCosts<'a>,
    /// Of layers.
    layers: LayoutCosts,
    /// Whether passes may hide each other's communication.
    may_join: bool,
    pub pipelines: Pipelines,
    outlooks: Outlooks,
}

impl<'a> CostModel<'a> {
    /// Computes what candidates with these layouts need.
    ///
    /// # Errors
    /// `Deadlock` if a layer's ops wait for each other.
    pub fn new(
        question: &'a Question,
        layouts: &[Candidate],
        costs: CachedCosts<'a>,
    ) -> Result<Self, Deadlock> {
        let model = Self::by_need(question, layouts, costs);
        layouts.par_iter().try_for_each(|layout| model.compute(layout))?;
        Ok(model)
    }

    /// A model that computes the layer costs of each of these layouts when they are first asked for.
    pub fn by_need(question: &'a Question, layouts: &[Candidate], costs: CachedCosts<'a>) -> Self {
        let pipelines = Pipelines::new(question.job.global_batch);
        let may_join = tries_joint_passes(question, &pipelines);
        let (layers, outlooks) = (LayoutCosts::new(layouts), Outlooks::new(question, layouts));
        Self { question, costs, layers, may_join, pipelines, outlooks }
    }

    /// Computes the layer costs of a layout, if they are not known yet.
    ///
    /// # Errors
    /// `Deadlock` if a layer's ops wait for each other.
    pub fn compute(&self, layout: &Candidate) -> Result<(), Deadlock> {
        self.alternatives(layout).map(|_| ())
    }

    /// By run of the model, what a block takes at least in a layout, however its passes run.
    ///
    /// # Errors
    /// As `compute`.
    pub fn least_block_times(&self, layout: &Candidate) -> Result<&[Seconds], Deadlock> {
        let compute = |first: &Candidate| least_block_times(self.question, first, self.may_join, &self.costs);
        self.layers.blocks_or(layout, compute)
    }

    fn alternatives(&self, candidate: &Candidate) -> Result<&Alternatives, Deadlock> {
        let compute = |first: &Candidate| Alternatives::new(self.question, first, self.may_join, &self.costs);
        self.layers.get_or(candidate, compute)
    }

    /// The layer costs of a candidate; where nodes are of several kinds, no layer takes less on any of them.
    pub fn of(&self, candidate: &Candidate) -> &ModelCost {
        &self.costs_of(candidate).least
    }

    /// The layer costs of a candidate by kind of node.
    pub fn by_kind(&self, candidate: &Candidate) -> &[ModelCost] {
        &self.costs_of(candidate).kinds
    }

    fn costs_of(&self, candidate: &Candidate) -> &ByKind {
        self.of_passes(candidate, self.pipelines.kind(candidate).joint)
    }

    /// # Panics
    /// If a layer's ops wait for each other, which `compute` reports.
    fn of_passes(&self, candidate: &Candidate, joint: bool) -> &ByKind {
        let alternatives = self.alternatives(candidate);
        alternatives.expect("a layer's ops do not wait for each other").of_passes(joint)
    }

    /// What is known of the errors of a candidate's forecasts.
    pub fn outlook(&self, candidate: &Candidate) -> &Outlook {
        self.outlooks.of(candidate.precision, &candidate.mesh)
    }

    /// What is known of the errors of a plan's forecast.
    pub fn outlook_of(&self, plan: &Plan) -> &Outlook {
        self.outlooks.of(plan.job.precision, &plan.mesh)
    }

    /// The run of the model that has most blocks, and how many.
    pub fn longest_run(&self) -> (usize, usize) {
        let counts = self.question.model.blocks.iter().map(|run| run.count);
        counts.enumerate().max_by_key(|(_, count)| *count).expect("a model has blocks")
    }
}

/// Whether candidates of a question may exchange tokens between experts in joint passes.
fn tries_joint_passes(question: &Question, pipelines: &Pipelines) -> bool {
    let experts = |run: &BlockRun| matches!(run.block.mlp, Mlp::Experts(_));
    let tried = |name: &str| match question.pins.pinned("schedule") {
        Some(pinned) => pinned.iter().any(|pin| pin == name),
        None => question.pins.breadth == Breadth::Whole && !question.pins.forbids("schedule", name),
    };
    question.model.blocks.iter().any(experts) && pipelines.joint().any(tried)
}
