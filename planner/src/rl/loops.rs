//! Loops of a mode: every plan of training with every engine, for each division of the GPUs that may be the fastest.
//!
//! The passes of training depend on its plan and GPUs alone, generation on the engine's. Each is simulated once, for all modes and
//! divisions that have it. A division is left out if the least time of generation, or what the products of training take at the GPUs' peak,
//! is no less than the step of a loop that was found.

use super::engines::engines;
use super::updates::{Training, Update};
use super::{RlCandidate, RlQuestion, RlVerdict, generation_gpus, named, part_of};
use crate::search::Clock;
use crate::verdict::PlannerError;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use trainwright_sim::Stop;
use trainwright_sim::rl::{Generated, PhaseMemory, RlForecast, assembled, generate};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;
use trainwright_spec::rl::{Balance, Mode, Phase, RlPlan};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::Seconds;

/// Of how many of the fastest loops of a mode training is planned with the whole effort.
const REFINED: usize = 3;

/// Loops of a question, on as many of its GPUs as one asks for.
pub(super) struct Loops<'a> {
    question: &'a RlQuestion,
    training: BTreeMap<TrainingKey, Training<'a>>,
    generation: BTreeMap<GenerationKey, Engines>,
}

/// GPUs, whether other models stay on them, and whether each update is balanced.
type TrainingKey = (usize, bool, bool);

/// GPUs, whether they are the engine's alone, and the bits of the staleness if generation does not wait for its longest answers.
type GenerationKey = (usize, bool, Option<u64>);

/// Engines on some GPUs: what they take, and why others take nothing.
struct Engines {
    served: Vec<(ServingPlan, Generated)>,
    faults: Vec<String>,
    cluster: Cluster,
}

impl<'a> Loops<'a> {
    pub fn new(question: &'a RlQuestion) -> Self {
        Self { question, training: BTreeMap::new(), generation: BTreeMap::new() }
    }

    /// The fastest loop of each mode on a part of the question's cluster, or as far as a limit of time goes.
    ///
    /// # Errors
    /// Bad pins, and a deadlock of a schedule.
    pub fn plan(&mut self, cluster: &Cluster, limit: Option<Seconds>) -> Result<RlVerdict, PlannerError> {
        let mut verdict = RlVerdict::default();
        let clock = Clock::new(limit, &|| false);
        let modes = &self.question.modes;
        for (mode, left) in modes.iter().zip((1..=modes.len()).rev()) {
            let clock = clock.share(left);
            let of_mode = self.plan_mode(*mode, cluster, &|| clock.is_over())?;
            verdict.unseen += of_mode.unseen;
            verdict.tried = [0, 1].map(|index| verdict.tried[index] + of_mode.tried[index]);
            verdict.left_out += of_mode.left_out;
            if of_mode.found.is_empty() {
                verdict.reasons.extend(of_mode.reasons);
            }
            verdict.found.extend(of_mode.found);
        }
        verdict.found.sort_by(|one, other| one.forecast.step.get().total_cmp(&other.forecast.step.get()));
        Ok(verdict)
    }

    fn plan_mode(&mut self, mode: Mode, cluster: &Cluster, stop: Stop) -> Result<RlVerdict, PlannerError> {
        if let Some(reason) = no_host(self.question, mode) {
            let reasons = vec![format!("{}: {reason}", named(mode))];
            return Ok(RlVerdict { reasons, ..RlVerdict::default() });
        }
        let divisions = divisions(self.question, mode, cluster);
        let mut best: Option<RlCandidate> = None;
        let mut found: Vec<(Seconds, Place)> = Vec::new();
        let mut closest: Option<(f64, Option<String>)> = None;
        let mut faults: Vec<String> = Vec::new();
        let mut verdict = RlVerdict::default();
        for [of_training, of_generation] in &divisions {
            let may_be_faster = |generation: Seconds| {
                let training = self.question.least_training(cluster, *of_training);
                let least = least_step(mode, generation, training);
                best.as_ref().is_none_or(|best| least < best.forecast.step)
            };
            let parts = [of_training, of_generation].map(|gpus| part_of(&self.question.cluster, *gpus));
            let [Some(first), Some(second)] = parts else { continue };
            if stop() {
                verdict.unseen += 1;
                continue;
            }
            if !may_be_faster(Seconds::ZERO) {
                verdict.left_out += 1;
                continue;
            }
            let of_engines = generation_key(mode, *of_generation);
            let engines = self
                .generation
                .entry(of_engines)
                .or_insert_with(|| Engines::new(self.question, mode, second));
            let served = engines.served.iter().map(|(_, generated)| generated.time);
            let least = served.min_by(|one, other| one.get().total_cmp(&other.get()));
            if !least.is_none_or(may_be_faster) {
                verdict.left_out += 1;
                continue;
            }
            faults.extend(engines.faults.iter().cloned());
            let key = training_key(self.question, mode, *of_training);
            let training = match self.training.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(Training::new(self.question, mode, &first, stop)?),
            };
            for (index, update) in training.updates.iter().enumerate() {
                let mut fastest: Option<Seconds> = None;
                for candidate in engines.with(update, mode) {
                    verdict.tried[0] += 1;
                    let missing = missing(&candidate.forecast);
                    if missing > 0.0 {
                        if closest.as_ref().is_none_or(|(least, _)| missing < *least) {
                            closest = Some((missing, fullest_fault(&candidate.forecast)));
                        }
                        continue;
                    }
                    verdict.tried[1] += 1;
                    let step = candidate.forecast.step;
                    fastest = Some(fastest.map_or(step, |fastest| fastest.min(step)));
                    if best.as_ref().is_none_or(|best| step < best.forecast.step) {
                        best = Some(candidate);
                    }
                }
                found.extend(fastest.map(|step| (step, (key, of_engines, index))));
            }
        }
        let mut reasons: Vec<String> = closest.and_then(|(_, fault)| fault).into_iter().collect();
        if reasons.is_empty() {
            reasons = match (divisions.is_empty(), verdict.tried[0]) {
                (true, _) => vec!["there are too few GPUs to divide".into()],
                (false, 0) if stop() => vec!["the time was up before anything fit".into()],
                (false, 0) if faults.is_empty() => vec![self.question.pins.illegal(&self.question.model)],
                _ => faults,
            };
            reasons.dedup();
        }
        verdict.reasons = reasons.into_iter().map(|reason| format!("{}: {reason}", named(mode))).collect();
        if let Some(best) = best {
            verdict.found.push(self.refined(mode, best, found, stop)?);
        }
        Ok(verdict)
    }

    /// The fastest loop once the training of the fastest ones is planned with the whole effort.
    fn refined(
        &mut self,
        mode: Mode,
        mut best: RlCandidate,
        mut found: Vec<(Seconds, Place)>,
        stop: Stop,
    ) -> Result<RlCandidate, PlannerError> {
        found.sort_by(|(one, _), (other, _)| one.get().total_cmp(&other.get()));
        let mut refined = 0;
        for (_, (of_training, of_generation, update)) in found {
            if refined == REFINED || stop() {
                break;
            }
            let training = self.training.get_mut(&of_training).expect("a loop that was found has training");
            let known = training.updates.len();
            refined += usize::from(training.refine(update, stop)?);
            for update in &training.updates[known..] {
                let candidates = self.generation[&of_generation].with(update, mode);
                for candidate in candidates.filter(|candidate| missing(&candidate.forecast) == 0.0) {
                    if candidate.forecast.step < best.forecast.step {
                        best = candidate;
                    }
                }
            }
        }
        Ok(best)
    }
}

/// A plan of training, and the GPUs of its engine.
type Place = (TrainingKey, GenerationKey, usize);

impl Engines {
    fn new(question: &RlQuestion, mode: Mode, cluster: Cluster) -> Self {
        let job = Job::new(1, 1, question.precision);
        let plain = Plan::plain(question.model.clone(), question.stack.clone(), cluster.clone(), job);
        let engines = engines(question, &cluster, mode.splits_gpus());
        let served: Vec<Result<_, String>> = engines
            .into_par_iter()
            .map(|engine| {
                let plan = loop_of(question, mode, plain.clone(), &cluster, engine);
                let fault = |error| format!("engine on {} GPUs: {error}", plan.engine.gpus());
                let generated = generate(&plan).map_err(fault)?;
                Ok((plan.engine, generated))
            })
            .collect();
        let mut all = Self { served: Vec::new(), faults: Vec::new(), cluster };
        for one in served {
            match one {
                Ok(served) => all.served.push(served),
                Err(fault) => all.faults.push(fault),
            }
        }
        all
    }

    /// The loops of a plan of training with each of them.
    fn with(&self, update: &Update, mode: Mode) -> impl Iterator<Item = RlCandidate> {
        self.served.iter().map(move |(engine, generated)| {
            let generation = self.cluster.clone();
            let plan = RlPlan { mode, engine: engine.clone(), generation, ..update.plan.clone() };
            let mut forecast = assembled(&plan, &update.times, generated.clone());
            for phase in forecast.memory.iter_mut().filter(|phase| phase.phase != Phase::Generation) {
                phase.limit = update.room;
            }
            RlCandidate { plan, forecast }
        })
    }
}

fn training_key(question: &RlQuestion, mode: Mode, gpus: usize) -> TrainingKey {
    let others_stay = !matches!(mode, Mode::Colocated { offload: true });
    (gpus, others_stay, question.controller.balance_in(mode) == Balance::MiniBatch)
}

fn generation_key(mode: Mode, gpus: usize) -> GenerationKey {
    let staleness = match mode {
        Mode::Async { staleness } => Some(staleness.to_bits()),
        _ => None,
    };
    (gpus, mode.splits_gpus(), staleness)
}

/// Divisions of the GPUs into those of training and of generation.
pub(super) fn divisions(question: &RlQuestion, mode: Mode, cluster: &Cluster) -> Vec<[usize; 2]> {
    let all = cluster.gpus();
    if !mode.splits_gpus() {
        return vec![[all, all]];
    }
    let wanted = |gpus: &usize| question.pins.generation.is_none_or(|pinned| pinned == *gpus);
    let possible = generation_gpus(cluster).filter(wanted);
    let mut divisions: Vec<[usize; 2]> = possible.map(|generation| [all - generation, generation]).collect();
    // From the middle on: the others are then more often left out.
    divisions.sort_by_key(|[training, generation]| training.abs_diff(*generation));
    divisions
}

/// The least step of a loop whose phases on the GPUs of training, and of generation, take no less.
///
/// See `assembled` for the modes.
fn least_step(mode: Mode, generation: Seconds, training: Seconds) -> Seconds {
    match mode {
        Mode::Colocated { .. } | Mode::Disaggregated => generation + training,
        Mode::OneStepOff | Mode::Async { .. } => generation.max(training),
        Mode::Streamed { parts } => {
            let part = 1.0 / parts.max(1) as f64;
            (generation + part * training).max(part * generation + training)
        }
    }
}

impl RlQuestion {
    /// What the products of the passes over all samples take at the peak of `gpus` GPUs.
    fn least_training(&self, cluster: &Cluster, gpus: usize) -> Seconds {
        let tokens: usize = self.job.sample_lengths().iter().sum();
        let update =
            Job::new(1, tokens, self.precision).step_flops(&self.model, AttentionCount::CausalHalved);
        // A forward pass has a third of the products of an update.
        let passes: f64 = self
            .job
            .phases()
            .map(|phase| match phase {
                Phase::Generation | Phase::Reward | Phase::WeightSync => 0.0,
                Phase::OldLogProb | Phase::RefLogProb | Phase::Values => 1.0 / 3.0,
                Phase::ActorUpdate | Phase::CriticUpdate => self.job.epochs as f64,
            })
            .sum();
        let peak = cluster.node.gpu.peak[&self.precision].value * gpus as f64;
        passes * (update / peak)
    }
}

/// Why state cannot leave the GPUs.
fn no_host(question: &RlQuestion, mode: Mode) -> Option<String> {
    let node = &question.cluster.node;
    let known = node.processors.is_some() || question.controller.to_host.is_some();
    let offloads = matches!(mode, Mode::Colocated { offload: true });
    (offloads && !known)
        .then(|| format!("the catalog has no host memory and no links to it for {}", node.name))
}

/// By how much the fullest phase is beyond what it may use of its GPU's memory, in parts of it; 0 if all fit.
fn missing(forecast: &RlForecast) -> f64 {
    let beyond = forecast.memory.iter().map(|phase| phase.total() / phase.limit - 1.0);
    beyond.fold(0.0, f64::max)
}

/// Why the phase that is furthest beyond its GPU's memory does not fit.
fn fullest_fault(forecast: &RlForecast) -> Option<String> {
    let beyond = |phase: &PhaseMemory| phase.total() / phase.limit;
    forecast.memory.iter().max_by(|one, other| beyond(one).total_cmp(&beyond(other)))?.fault()
}

/// A loop of a question.
pub(super) fn loop_of(
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
