//! One point of a sweep: a question or plan, and the prices of its hours and watts.

use crate::price::Price;
use std::sync::Arc;
use trainwright_planner::Question;
use trainwright_spec::calibration::Calibration;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::Model;
use trainwright_spec::plan::Plan;

/// A question or a plan, with rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The question, or the plan.
    pub base: Base,
    /// Prices, power and tokens.
    pub rates: Rates,
    /// The calibration of forecasts; `None`: hardware and software are as they should be.
    pub calibration: Option<Arc<Calibration>>,
}

/// Model, cluster and job, with or without a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Base {
    /// To be planned.
    Question(Box<Question>),
    /// Planned already: its choices stay as they are.
    Plan(Box<Plan>),
}

/// Rates for a run's time, energy and money.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// Price of a GPU for an hour; `None` for the catalog's list price of the node, or of its GPU.
    pub price: Option<Price>,
    /// Power usage effectiveness: power of the facility over power of its GPUs.
    pub pue: f64,
    /// Tokens of the run; `None` if not given.
    pub tokens: Option<f64>,
}

impl Base {
    /// The question or plan with calibrated hardware and software.
    pub(crate) fn calibrated(&self, calibration: &Calibration) -> Self {
        let mut base = self.clone();
        match &mut base {
            Base::Question(question) => {
                calibration.apply(&mut question.cluster, &mut question.stack);
                question.risk.residuals = Arc::clone(&calibration.residuals);
            }
            Base::Plan(plan) => calibration.apply(&mut plan.cluster, &mut plan.stack),
        }
        base
    }
}

impl Scenario {
    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        match &self.base {
            Base::Question(question) => &question.cluster,
            Base::Plan(plan) => &plan.cluster,
        }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        match &self.base {
            Base::Question(question) => &question.model,
            Base::Plan(plan) => &plan.model,
        }
    }

    /// How much is trained.
    pub fn job(&self) -> &Job {
        match &self.base {
            Base::Question(question) => &question.job,
            Base::Plan(plan) => &plan.job,
        }
    }

    pub(crate) fn cluster_mut(&mut self) -> &mut Cluster {
        match &mut self.base {
            Base::Question(question) => &mut question.cluster,
            Base::Plan(plan) => &mut plan.cluster,
        }
    }

    pub(crate) fn model_mut(&mut self) -> &mut Model {
        match &mut self.base {
            Base::Question(question) => &mut question.model,
            Base::Plan(plan) => &mut plan.model,
        }
    }
}
