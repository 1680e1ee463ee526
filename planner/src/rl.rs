//! Plans of reinforcement-learning loops: the layout of training, that of the engine, and the GPUs of each.
//!
//! ```text
//! modes × divisions of the GPUs ─► updates: plans of training, from the planner ─┐
//!                              └─► engines: their tensor ranks ─────────────────┴─► loops: every pair ─► least step that fits
//! ```

mod engines;
mod loops;
mod updates;

use crate::verdict::PlannerError;
use loops::Loops;
use std::sync::Arc;
use trainwright_sim::rl::RlForecast;
use trainwright_spec::calibration::Calibration;
use trainwright_spec::calibration::residuals::Residuals;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::precision::Precision;
use trainwright_spec::rl::{Controller, Mode, RlJob, RlPlan, SyncMethod};
use trainwright_spec::serving::Engine;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

/// What is asked.
#[derive(Debug, Clone)]
pub struct RlQuestion {
    /// The actor; a critic is another of it.
    pub model: Model,
    /// The GPUs.
    pub cluster: Cluster,
    /// What a step does.
    pub job: RlJob,
    /// Modes that may be.
    pub modes: Vec<Mode>,
    /// Training's software.
    pub stack: Stack,
    /// Its calibration, which training's numbers get.
    pub calibration: Option<Calibration>,
    /// The errors of its forecasts: training fits with 95 % probability.
    pub residuals: Arc<Residuals>,
    /// Training's number format.
    pub precision: Precision,
    /// Tokens packed into a microbatch at most; fewer are tried too.
    pub pack: usize,
    /// The engine; `memory_share` is that of GPUs of its own.
    pub engine: Engine,
    /// The part of a GPU that it takes where it shares it with training.
    pub colocated_share: f64,
    /// Formats of its weights and its experts' weights.
    pub weights: [String; 2],
    /// How weights are handed over.
    pub sync: SyncMethod,
    /// The software that runs the loop.
    pub controller: Controller,
    /// What is pinned of the layouts.
    pub pins: RlPins,
}

/// Choices that are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RlPins {
    /// Tensor ranks of training.
    pub tensor: Option<usize>,
    /// Pipeline ranks of training.
    pub pipeline: Option<usize>,
    /// Expert ranks of training.
    pub expert: Option<usize>,
    /// Tensor ranks of the engine.
    pub engine_tensor: Option<usize>,
    /// GPUs of generation, where it has some of its own.
    pub generation: Option<usize>,
}

impl RlPins {
    /// That no plan of training or of the engine is legal, with what is pinned.
    fn illegal(&self, model: &Model) -> String {
        let pins = [
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("expert", self.expert),
            ("engine tensor", self.engine_tensor),
        ];
        let pinned = pins.iter().filter_map(|(name, ranks)| Some(format!("{name} {}", (*ranks)?)));
        let pinned: Vec<String> = pinned.collect();
        let with = if pinned.is_empty() { String::new() } else { format!(" with {}", pinned.join(", ")) };
        format!(
            "no plan of training or of the engine{with} divides {} and its {} blocks over these GPUs",
            model.name,
            model.layers()
        )
    }
}

/// A loop with its forecast.
#[derive(Debug, Clone)]
pub struct RlCandidate {
    /// The loop.
    pub plan: RlPlan,
    /// Its forecast.
    pub forecast: RlForecast,
}

/// The answer.
#[derive(Debug, Clone, Default)]
pub struct RlVerdict {
    /// The fastest of each mode that fits, the fastest first.
    pub found: Vec<RlCandidate>,
    /// Why nothing else fits, the reasons that come closest first: of modes without a plan.
    pub reasons: Vec<String>,
    /// How many combinations were looked at, and how many of them fit.
    pub tried: [usize; 2],
    /// Divisions of the GPUs without a look: they cannot be faster, by generation alone or by the products of training.
    pub left_out: usize,
    /// Divisions of the GPUs that the time did not suffice for.
    pub unseen: usize,
}

/// The fastest loop of each mode on all GPUs, or as far as a limit of time goes.
///
/// # Errors
/// `BadPin`, and a deadlock of a schedule; what does not fit is a verdict.
pub fn plan_rl(question: &RlQuestion, limit: Option<Seconds>) -> Result<RlVerdict, PlannerError> {
    Loops::new(question).plan(&question.cluster, limit)
}

/// The fewest GPUs, of a node 1, 2, 4, …, then whole nodes, on which a loop fits and takes at most `most` a step: every number is
/// tried, in order.
///
/// # Errors
/// As `plan_rl`.
pub fn fewest_gpus(
    question: &RlQuestion,
    most: Option<Seconds>,
) -> Result<(Option<usize>, RlVerdict), PlannerError> {
    let mut loops = Loops::new(question);
    let mut last = RlVerdict::default();
    for cluster in parts(&question.cluster) {
        let gpus = cluster.gpus();
        let mut verdict = loops.plan(&cluster, None)?;
        if let Some(most) = most {
            let slow = verdict.found.first().map(|best| best.forecast.step);
            verdict.found.retain(|found| found.forecast.step <= most);
            if let (true, Some(step)) = (verdict.found.is_empty(), slow) {
                verdict.reasons = vec![format!(
                    "{gpus} GPUs: a step takes {:.1} s, at most {:.1} s are asked",
                    step.get(),
                    most.get()
                )];
            }
        }
        if !verdict.found.is_empty() {
            return Ok((Some(gpus), verdict));
        }
        last = verdict;
    }
    Ok((None, last))
}

/// The GPUs that generation may have to itself: whole nodes, and of one node powers of two that leave one.
pub fn generation_gpus(cluster: &Cluster) -> impl Iterator<Item = usize> {
    let all = cluster.gpus();
    let unit = if cluster.nodes > 1 { cluster.node.gpus.value } else { 1 };
    let counts = (1..).map(move |count| count * unit).take_while(move |gpus| *gpus < all);
    counts.filter(move |gpus| cluster.nodes > 1 || (gpus.is_power_of_two() && (all - gpus).is_power_of_two()))
}

/// The parts of a cluster that `fewest_gpus` tries, in order.
pub fn parts(cluster: &Cluster) -> Vec<Cluster> {
    let node = cluster.node.gpus.value;
    let of_node = (0..).map(|power| 1usize << power).take_while(|gpus| *gpus < node);
    let gpus = of_node.chain((1..=cluster.nodes).map(|nodes| nodes * node));
    gpus.filter_map(|gpus| part_of(cluster, gpus)).collect()
}

/// The first `gpus` GPUs of a cluster: a part of one node, or whole nodes.
fn part_of(cluster: &Cluster, gpus: usize) -> Option<Cluster> {
    let node = cluster.node.gpus.value;
    if gpus.is_multiple_of(node) {
        return (gpus / node <= cluster.nodes).then(|| cluster.with_fewer_nodes(gpus / node)).flatten();
    }
    cluster.with_fewer_gpus(gpus)
}

/// A mode for people.
pub fn named(mode: Mode) -> &'static str {
    match mode {
        Mode::Colocated { offload: true } => "colocated, state offloaded during generation",
        Mode::Colocated { offload: false } => "colocated",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests;
