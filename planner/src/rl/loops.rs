//! Loops of a mode: every plan of training with every engine, for each division of the GPUs that may be the fastest.
//!
//! The passes of training depend on its plan and GPUs alone, generation on the engine's. Each is simulated once, for all modes and
//! divisions that have it.
//!
//! The best loop so far is a bound. No loop of a division takes less than its generation, the products of training at the GPUs' peak and
//! the hand-over of the weights do in its mode: where that is no less than the best step, the division, or the question about its
//! training, is skipped. Any other question is asked for plans whose passes are so short that the loop beats the third of the loops
//! whose training will be planned with the whole effort; the planner then skips what its lower bounds exceed. What is skipped
//! is neither the answer nor planned again, except where the rounding of samples breaks the cutoff (`Training::limit`). The answer does
//! not depend on the number of threads: questions are asked in three waves, whose limits are those of the waves before.

use super::engines::engines;
use super::updates::{ANY, Parts, Training, Update};
use super::{RlCandidate, RlQuestion, RlVerdict, generation_gpus, named, part_of};
use crate::search::Clock;
use crate::verdict::PlannerError;
use rayon::prelude::*;
use std::collections::BTreeMap;
use trainwright_sim::Stop;
use trainwright_sim::rl::{Generated, HostMemory, PhaseMemory, RlForecast, assembled, generate};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;
use trainwright_spec::rl::{Balance, Mode, Phase, RlPlan};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::{Bytes, Seconds};

/// Of how many of the fastest loops of a mode training is planned with the whole effort.
const REFINED: usize = 3;

/// Loops of a question, on as many of its GPUs as one asks for.
pub(super) struct Loops<'a> {
    question: &'a RlQuestion,
    training: BTreeMap<TrainingKey, Training<'a>>,
    parts: Parts,
    generation: BTreeMap<GenerationKey, Engines>,
    /// Whether what cannot be the answer is left out.
    pub is_bounded: bool,
}

/// GPUs, whether the engine is on them too, whether state stays beside it, and whether each update is balanced.
type TrainingKey = (usize, bool, bool, bool);

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
        Self {
            question,
            training: BTreeMap::new(),
            parts: Parts::default(),
            generation: BTreeMap::new(),
            is_bounded: true,
        }
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
        let mut verdict = RlVerdict::default();
        let mut tally = Tally { is_bounded: self.is_bounded, ..Tally::default() };
        let mut faults: Vec<String> = Vec::new();
        let mut open: Vec<Division> = Vec::new();
        for (index, [of_training, of_generation]) in divisions.iter().enumerate() {
            let parts = [of_training, of_generation].map(|gpus| part_of(&self.question.cluster, *gpus));
            let [Some(first), Some(second)] = parts else { continue };
            if stop() {
                verdict.unseen += 1;
                continue;
            }
            let generation = generation_key(mode, *of_generation);
            let engines = self
                .generation
                .entry(generation)
                .or_insert_with(|| Engines::new(self.question, mode, second));
            let served = engines.served.iter().map(|(_, generated)| generated.time);
            let shortest = served.reduce(Seconds::min).unwrap_or(Seconds::ZERO);
            let passes = self.question.least_training(cluster, *of_training);
            let least = least_step(mode, shortest, passes);
            let training = training_key(self.question, mode, *of_training);
            open.push(Division { index, first, training, generation, passes, least });
        }
        // What is looked at first leaves out most of the others. Stable: of equal ones the first.
        open.sort_by(|one, other| one.least.get().total_cmp(&other.least.get()));
        for division in &open {
            if stop() {
                verdict.unseen += 1;
                continue;
            }
            if !tally.may_be_faster(division.least, [division.index, 0]) {
                verdict.left_out += 1;
                continue;
            }
            faults.extend(self.generation[&division.generation].faults.iter().cloned());
            self.look_at(division, mode, &mut tally, stop)?;
        }
        verdict.tried = tally.tried;
        let mut reasons: Vec<String> =
            tally.closest.take().and_then(|(_, fault)| fault).into_iter().collect();
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
        self.refine(&open, mode, &mut tally, stop)?;
        verdict.found.extend(tally.best.map(|(_, best)| best));
        Ok(verdict)
    }

    /// Asks the questions of a division that may have the fastest loop, the most promising first, and all others beside each other.
    fn look_at(
        &mut self,
        division: &Division,
        mode: Mode,
        tally: &mut Tally,
        stop: Stop,
    ) -> Result<(), PlannerError> {
        let engines = &self.generation[&division.generation];
        let training = self
            .training
            .entry(division.training)
            .or_insert_with(|| Training::new(self.question, mode, &division.first, engines.least_memory()));
        let offers = Offers::new(division, mode, engines, training);
        let order = training.by_promise();
        let (first, others) = order.split_at(order.len().min(1));
        let (second, others) = others.split_at(others.len().min(REFINED - 1));
        for wave in [first, second, others] {
            let most = tally.last_refined();
            let is_open =
                |asked: &&usize| tally.may_be_faster(offers.least(**asked), [division.index, **asked]);
            let wanted: Vec<usize> = wave.iter().filter(is_open).copied().collect();
            let limits: Vec<(usize, Seconds)> =
                wanted.iter().map(|asked| (*asked, offers.longest_training(*asked, most))).collect();
            training.ask(&limits, &self.parts, stop)?;
            for asked in wanted {
                if training.is_refined(asked) {
                    let longest = offers.longest_training(asked, tally.least());
                    training.refine(asked, longest, &self.parts, stop)?;
                }
                let updates = training.fit(asked).chain(training.refined(asked));
                tally.add(division, (asked, training.is_refined(asked)), updates, engines, mode);
            }
        }
        if tally.best.is_none() {
            let closest = training.closest(stop)?;
            tally.add(division, (0, true), closest.iter(), engines, mode);
        }
        Ok(())
    }

    /// Plans the training of the fastest loops with the whole effort, where it may then be the fastest of all.
    fn refine(
        &mut self,
        divisions: &[Division],
        mode: Mode,
        tally: &mut Tally,
        stop: Stop,
    ) -> Result<(), PlannerError> {
        let mut found = tally.found.clone();
        found.sort_by(|one, other| one.step.get().total_cmp(&other.step.get()).then(one.at.cmp(&other.at)));
        let mut refined = 0;
        for Found { at: [division, asked], .. } in found {
            if refined == REFINED || stop() {
                break;
            }
            let division = divisions.iter().find(|of| of.index == division).expect("it was looked at");
            let training =
                self.training.get_mut(&division.training).expect("a loop that was found has training");
            if training.is_refined(asked) {
                continue;
            }
            refined += 1;
            let engines = &self.generation[&division.generation];
            let offers = Offers::new(division, mode, engines, training);
            if tally.least().is_some_and(|least| offers.least(asked) >= least) {
                continue;
            }
            let longest = offers.longest_training(asked, tally.least());
            training.refine(asked, longest, &self.parts, stop)?;
            tally.add(division, (asked, true), training.refined(asked), engines, mode);
        }
        Ok(())
    }
}

/// A division of the GPUs.
struct Division {
    /// Its place among those of the mode.
    index: usize,
    /// The GPUs of training.
    first: Cluster,
    training: TrainingKey,
    generation: GenerationKey,
    /// What the products of training take at the GPUs' peak.
    passes: Seconds,
    /// No loop takes less.
    least: Seconds,
}

/// By question and engine of a division, what loops take beside the passes of training.
struct Offers<'a> {
    mode: Mode,
    passes: Seconds,
    engines: &'a Engines,
    /// By question and engine, the least time of the hand-over.
    sync: Vec<Vec<Seconds>>,
}

impl<'a> Offers<'a> {
    fn new(division: &Division, mode: Mode, engines: &'a Engines, training: &Training) -> Self {
        let sync = |asked: usize| {
            let of_engine =
                |(engine, _): &(ServingPlan, Generated)| training.least_sync(asked, engine, &engines.cluster);
            engines.served.iter().map(of_engine).collect()
        };
        let sync = (0..training.questions()).map(sync).collect();
        Self { mode, passes: division.passes, engines, sync }
    }

    /// What each engine takes, and the hand-over of a question's plans to it.
    fn of(&self, asked: usize) -> impl Iterator<Item = (Seconds, Seconds)> {
        let times = self.engines.served.iter().map(|(_, generated)| generated.time);
        times.zip(self.sync[asked].iter().copied())
    }

    /// No loop with a plan of this question takes less.
    fn least(&self, asked: usize) -> Seconds {
        let least = |(generation, sync)| least_step(self.mode, generation, self.passes) + sync;
        self.of(asked).map(least).reduce(Seconds::min).unwrap_or(Seconds::new(f64::INFINITY))
    }

    /// Loops with plans of this question whose passes of training take so long take `most` or more.
    fn longest_training(&self, asked: usize, most: Option<Seconds>) -> Seconds {
        let Some(most) = most else { return ANY };
        // Sums of other order may round otherwise.
        let most = most * (1.0 + 1e-9);
        let longest = |(generation, sync)| longest_training(self.mode, generation, most - sync);
        self.of(asked).map(longest).reduce(Seconds::max).unwrap_or(Seconds::ZERO)
    }
}

/// What is known of the loops of a mode.
#[derive(Default)]
struct Tally {
    /// The fastest, and where it is: of equal ones the first.
    best: Option<(Place, RlCandidate)>,
    /// The fastest of each question.
    found: Vec<Found>,
    /// How much the loop that comes closest lacks of memory, in parts of it, and of which phase.
    closest: Option<(f64, Option<String>)>,
    tried: [usize; 2],
    /// Whether what cannot be the answer is left out.
    is_bounded: bool,
}

/// A division and a question of its training.
type Place = [usize; 2];

/// The fastest loop of a question.
#[derive(Clone)]
struct Found {
    step: Seconds,
    at: Place,
    /// Whether its training is planned with the whole effort already.
    refined: bool,
}

impl Tally {
    fn least(&self) -> Option<Seconds> {
        self.best.as_ref().filter(|_| self.is_bounded).map(|(_, best)| best.forecast.step)
    }

    /// Whether loops of a place that take `least` or more may come before the best.
    fn may_be_faster(&self, least: Seconds, at: Place) -> bool {
        !self.is_bounded || self.comes_first(least, at)
    }

    /// Whether a loop of a place that takes `least` comes before the best.
    fn comes_first(&self, least: Seconds, at: Place) -> bool {
        self.best.as_ref().is_none_or(|(of_best, best)| {
            let step = best.forecast.step;
            least < step || least == step && at < *of_best
        })
    }

    /// The step of the last of the fastest questions whose training will be planned with the whole effort; `None` if there are
    /// fewer. Slower ones are neither the best nor planned so.
    fn last_refined(&self) -> Option<Seconds> {
        let mut steps: Vec<Seconds> =
            self.found.iter().filter(|found| !found.refined).map(|found| found.step).collect();
        steps.sort_by(|one, other| one.get().total_cmp(&other.get()));
        steps.get(REFINED - 1).filter(|_| self.is_bounded).copied()
    }

    /// Looks at the loops of a question's plans.
    fn add<'u>(
        &mut self,
        division: &Division,
        (asked, refined): (usize, bool),
        updates: impl Iterator<Item = &'u Update>,
        engines: &Engines,
        mode: Mode,
    ) {
        let at = [division.index, asked];
        let mut fastest: Option<Seconds> = None;
        for candidate in updates.flat_map(|update| engines.with(update, mode)) {
            self.tried[0] += 1;
            let missing = missing(&candidate.forecast);
            if missing > 0.0 {
                if self.closest.as_ref().is_none_or(|(least, _)| missing < *least) {
                    self.closest = Some((missing, fullest_fault(&candidate.forecast)));
                }
                continue;
            }
            self.tried[1] += 1;
            let step = candidate.forecast.step;
            fastest = Some(fastest.map_or(step, |fastest| fastest.min(step)));
            if self.comes_first(step, at) {
                self.best = Some((at, candidate));
            }
        }
        self.found.extend(fastest.map(|step| Found { step, at, refined }));
    }
}

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

    /// What every engine that serves needs of a GPU's memory.
    fn least_memory(&self) -> Bytes {
        let gpu = self.cluster.node.gpu.memory.value;
        let needs = |(engine, generated): &(ServingPlan, Generated)| generated.needs(engine, gpu);
        self.served.iter().map(needs).reduce(Bytes::min).unwrap_or(Bytes::ZERO)
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
    let stays = !matches!(mode, Mode::Colocated { offload: true });
    (gpus, !mode.splits_gpus(), stays, question.controller.balance_in(mode) == Balance::MiniBatch)
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

/// The longest training of loops whose step, without the hand-over, takes less than `most`; none, that is no time, if generation takes as
/// long.
fn longest_training(mode: Mode, generation: Seconds, most: Seconds) -> Seconds {
    match mode {
        Mode::Colocated { .. } | Mode::Disaggregated => most - generation,
        Mode::OneStepOff | Mode::Async { .. } if generation < most => most,
        Mode::OneStepOff | Mode::Async { .. } => Seconds::ZERO,
        Mode::Streamed { parts } => {
            let parts = parts.max(1) as f64;
            (parts * (most - generation)).min(most - (1.0 / parts) * generation)
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

/// How often what a phase, or a node's host, needs is in the memory that it may use, and why it does not fit.
fn needs(forecast: &RlForecast) -> impl Iterator<Item = (f64, Option<String>)> + '_ {
    let of_phase = |phase: &PhaseMemory| (phase.total() / phase.limit, phase.fault());
    let of_host = |host: &HostMemory| (host.needs / host.has, host.fault());
    forecast.memory.iter().map(of_phase).chain(forecast.host.iter().map(of_host))
}

/// By how much the fullest phase or host is beyond the memory that it may use, in parts of it; 0 if all fit.
fn missing(forecast: &RlForecast) -> f64 {
    needs(forecast).map(|(needs, _)| needs - 1.0).fold(0.0, f64::max)
}

/// Why the phase or host that is furthest beyond the memory that it may use does not fit.
fn fullest_fault(forecast: &RlForecast) -> Option<String> {
    needs(forecast).max_by(|one, other| one.0.total_cmp(&other.0))?.1
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
