//! What a question's candidates cost, in one place: all that bounds and partitions are made of.

use super::cached_costs::CachedCosts;
use super::layer_cost::ModelCost;
use super::layout_costs::{ByKind, LayoutCosts};
use super::outlooks::Outlooks;
use super::pipelines::Pipelines;
use crate::candidate::Candidate;
use crate::question::{Breadth, Question};
use crate::risk::Outlook;
use trainwright_sim::Deadlock;
use trainwright_spec::model::{BlockRun, Mlp};
use trainwright_spec::plan::Plan;

/// The costs of a question's candidates.
pub(crate) struct CostModel<'a> {
    pub question: &'a Question,
    /// Of ops.
    pub costs: CachedCosts<'a>,
    /// Of layers.
    pub layers: LayoutCosts,
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
        Ok(Self::within(question, layouts, costs, &|| false)?.expect("there is no limit"))
    }

    /// Computes what candidates with these layouts need; `None` if the time is up before.
    ///
    /// # Errors
    /// `Deadlock` if a layer's ops wait for each other.
    pub fn within(
        question: &'a Question,
        layouts: &[Candidate],
        costs: CachedCosts<'a>,
        out_of_time: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Self>, Deadlock> {
        let pipelines = Pipelines::new(question.job.global_batch);
        let may_join = tries_joint_passes(question, &pipelines);
        let Some(layers) = LayoutCosts::within(question, layouts, may_join, &costs, out_of_time)? else {
            return Ok(None);
        };
        let outlooks = Outlooks::new(question, layouts);
        Ok(Some(Self { question, costs, layers, pipelines, outlooks }))
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
        self.layers.of(candidate, self.pipelines.kind(candidate).joint)
    }

    /// The least layer costs of the candidates with a layout.
    pub fn of_layout(&self, layout: &Candidate) -> &ModelCost {
        &self.layers.of(layout, true).least
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
