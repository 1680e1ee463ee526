//! Plans of reinforcement-learning loops: the layout of training, that of the engine, and the GPUs of each.
//!
//! ```text
//! modes × splits of nodes ─► layouts of training, timed once for each number of GPUs ─┐
//!                        └─► layouts of the engine, likewise ──────────────────────────┴─► every pair ─► least step that fits
//! ```
//!
//! The passes of training depend on its layout and GPUs alone, generation on the engine's alone, so that each is simulated once and
//! every pair of them is looked at: the answer is the best of all combinations of the options that were tried.

mod layouts;

use layouts::{engines, part_of, trainings};
use rayon::prelude::*;
use std::collections::BTreeMap;
use trainwright_sim::rl::{
    Generated, PhaseMemory, RlForecast, TrainingTimes, assembled, generate, training_times,
};
use trainwright_spec::calibration::Calibration;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::rl::{Controller, Mode, RlJob, RlPlan, SyncMethod};
use trainwright_spec::serving::{Engine, ServingPlan};
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
    /// Training's number format.
    pub precision: Precision,
    /// Tokens packed into a microbatch at most.
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

/// A loop with its forecast.
#[derive(Debug, Clone)]
pub struct RlCandidate {
    /// The loop.
    pub plan: RlPlan,
    /// Its forecast.
    pub forecast: RlForecast,
}

/// The answer.
#[derive(Debug, Clone)]
pub struct RlVerdict {
    /// The fastest of each mode that fits, the fastest first.
    pub found: Vec<RlCandidate>,
    /// Why nothing else fits, the reasons that come closest first: of modes without a plan.
    pub reasons: Vec<String>,
    /// How many combinations were looked at, and how many of them fit.
    pub tried: [usize; 2],
}

/// The fastest loop of each mode on all GPUs.
pub fn plan_rl(question: &RlQuestion) -> RlVerdict {
    let mut verdict = RlVerdict { found: Vec::new(), reasons: Vec::new(), tried: [0; 2] };
    for mode in &question.modes {
        let of_mode = plan_mode(question, *mode);
        verdict.tried = [verdict.tried[0] + of_mode.tried[0], verdict.tried[1] + of_mode.tried[1]];
        if of_mode.found.is_empty() {
            verdict.reasons.extend(of_mode.reasons);
        }
        verdict.found.extend(of_mode.found);
    }
    verdict.found.sort_by(|one, other| one.forecast.step.get().total_cmp(&other.forecast.step.get()));
    verdict
}

/// The fewest GPUs, of a node 1, 2, 4, …, then whole nodes, on which a loop fits and takes at most `most` a step: every number is
/// tried, in order.
pub fn fewest_gpus(question: &RlQuestion, most: Option<Seconds>) -> (Option<usize>, RlVerdict) {
    let node = question.cluster.node.gpus.value;
    let of_node = (0..).map(|power| 1usize << power).take_while(|gpus| *gpus < node);
    let all = of_node.chain((1..=question.cluster.nodes).map(|nodes| nodes * node));
    let mut last = RlVerdict { found: Vec::new(), reasons: Vec::new(), tried: [0; 2] };
    for gpus in all {
        let Some(cluster) = part_of(&question.cluster, gpus) else { continue };
        let mut verdict = plan_rl(&RlQuestion { cluster, ..question.clone() });
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
            return (Some(gpus), verdict);
        }
        last = verdict;
    }
    (None, last)
}

/// Splits of the GPUs into those of training and of generation.
fn splits(question: &RlQuestion, mode: Mode) -> Vec<[usize; 2]> {
    let all = question.cluster.gpus();
    if !mode.splits_gpus() {
        return vec![[all, all]];
    }
    let wanted = |gpus: &usize| question.pins.generation.is_none_or(|pinned| pinned == *gpus);
    let possible = generation_gpus(&question.cluster);
    possible.filter(wanted).map(|generation| [all - generation, generation]).collect()
}

/// The GPUs that generation may have to itself: whole nodes, and of one node powers of two that leave one.
pub fn generation_gpus(cluster: &Cluster) -> impl Iterator<Item = usize> {
    let all = cluster.gpus();
    let unit = if cluster.nodes > 1 { cluster.node.gpus.value } else { 1 };
    let counts = (1..).map(move |count| count * unit).take_while(move |gpus| *gpus < all);
    counts.filter(move |gpus| cluster.nodes > 1 || (gpus.is_power_of_two() && (all - gpus).is_power_of_two()))
}

fn plan_mode(question: &RlQuestion, mode: Mode) -> RlVerdict {
    let splits = splits(question, mode);
    // Each number of GPUs once.
    let mut training: BTreeMap<usize, Vec<(RlPlan, TrainingTimes)>> = BTreeMap::new();
    let mut generation: BTreeMap<usize, Vec<(RlPlan, Generated)>> = BTreeMap::new();
    let mut faults: Vec<String> = Vec::new();
    for [of_training, of_generation] in &splits {
        let parts = (part_of(&question.cluster, *of_training), part_of(&question.cluster, *of_generation));
        let (Some(first), Some(second)) = parts else { continue };
        if !training.contains_key(of_training) {
            let plans = trainings(question, &first);
            let timed: Vec<_> = plans
                .into_par_iter()
                .filter_map(|actor| {
                    let plan =
                        loop_of(question, mode, actor, &first, ServingPlan::new(question.engine.clone()));
                    let times = training_times(&plan).ok()?;
                    // The plan with the samples' microbatches is the one to show.
                    let sized = RlPlan { actor: times.actor.clone(), critic: times.critic.clone(), ..plan };
                    Some((sized, times))
                })
                .collect();
            training.insert(*of_training, timed);
        }
        if !generation.contains_key(of_generation) {
            let plans = engines(question, &second, mode.splits_gpus());
            let plain = Plan::plain(
                question.model.clone(),
                question.stack.clone(),
                second.clone(),
                trainwright_spec::job::Job::new(1, 1, question.precision),
            );
            let served: Vec<_> = plans
                .into_par_iter()
                .map(|engine| {
                    let plan = loop_of(question, mode, plain.clone(), &second, engine);
                    let generated = generate(&plan)
                        .map_err(|error| format!("engine on {} GPUs: {error}", plan.engine.gpus()))?;
                    Ok((plan, generated))
                })
                .collect::<Vec<Result<_, String>>>();
            let mut fine = Vec::new();
            for one in served {
                match one {
                    Ok(one) => fine.push(one),
                    Err(fault) => faults.push(fault),
                }
            }
            generation.insert(*of_generation, fine);
        }
    }
    let mut best: Option<RlCandidate> = None;
    let mut closest: Option<(f64, Option<String>)> = None;
    let mut tried = [0; 2];
    for [of_training, of_generation] in &splits {
        let none = (Vec::new(), Vec::new());
        let trained = training.get(of_training).unwrap_or(&none.0);
        let served = generation.get(of_generation).unwrap_or(&none.1);
        for (train, times) in trained {
            for (serve, generated) in served {
                let plan = RlPlan {
                    engine: serve.engine.clone(),
                    generation: serve.generation.clone(),
                    ..train.clone()
                };
                let forecast = assembled(&plan, times, generated.clone());
                tried[0] += 1;
                let missing = missing(&forecast);
                if missing > 0.0 {
                    if closest.as_ref().is_none_or(|(least, _)| missing < *least) {
                        closest = Some((missing, fullest_fault(&forecast)));
                    }
                    continue;
                }
                tried[1] += 1;
                if best.as_ref().is_none_or(|best| forecast.step < best.forecast.step) {
                    best = Some(RlCandidate { plan, forecast });
                }
            }
        }
    }
    let mut reasons: Vec<String> = closest.and_then(|(_, fault)| fault).into_iter().collect();
    if reasons.is_empty() {
        reasons = match (splits.is_empty(), tried[0]) {
            (true, _) => vec!["there are too few GPUs to divide".into()],
            (false, 0) if faults.is_empty() => {
                vec!["no layout of training or of the engine divides the model over these GPUs".into()]
            }
            _ => faults,
        };
        reasons.dedup();
    }
    let reasons = reasons.into_iter().map(|reason| format!("{}: {reason}", named(mode))).collect();
    RlVerdict { found: best.into_iter().collect(), reasons, tried }
}

/// A mode for people.
pub fn named(mode: Mode) -> &'static str {
    match mode {
        Mode::Colocated { offload: true } => "colocated, state offloaded during generation",
        Mode::Colocated { offload: false } => "colocated",
        other => other.name(),
    }
}

/// By how much the fullest phase is beyond its GPU's memory, in parts of it; 0 if all fit.
fn missing(forecast: &RlForecast) -> f64 {
    let beyond = forecast.memory.iter().map(|phase| phase.total() / phase.limit - 1.0);
    beyond.fold(0.0, f64::max)
}

/// Why the phase that is furthest beyond its GPU's memory does not fit.
fn fullest_fault(forecast: &RlForecast) -> Option<String> {
    let beyond = |phase: &PhaseMemory| phase.total() / phase.limit;
    forecast.memory.iter().max_by(|one, other| beyond(one).total_cmp(&beyond(other)))?.fault()
}

fn loop_of(
    question: &RlQuestion,
    mode: Mode,
    actor: Plan,
    generation: &Cluster,
    engine: ServingPlan,
) -> RlPlan {
    RlPlan {
        job: question.job.clone(),
        mode,
        critic: question.job.algorithm.has_critic().then(|| actor.clone()),
        actor,
        pack: question.pack,
        engine,
        generation: generation.clone(),
        sync: question.sync,
        controller: question.controller.clone(),
        padded: question.job.prompt + question.job.responses.most,
    }
}

#[cfg(test)]
mod tests;
