//! The phases of a step on one line, or on two where generation has GPUs of its own.

use super::generation::{Generated, generate};
use super::memory::{HostMemory, LoopMemory, PhaseMemory, loop_memory};
use super::passes::{forward_over, updates};
use super::sync::{HostTimes, host_times, sync_time};
use crate::serving::ServingError;
use thiserror::Error;
use trainwright_spec::plan::Plan;
use trainwright_spec::rl::{Mode, Phase, RlPlan};
use trainwright_spec::units::Seconds;

/// The GPUs of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// All of them, or those of training.
    Training,
    /// Those of generation alone.
    Engine,
    /// Both kinds.
    Both,
}

/// A phase in the loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PhaseTime {
    /// Which.
    pub phase: Phase,
    /// Where.
    pub lane: Lane,
    /// From the beginning of the step on.
    pub start: Seconds,
    /// How long.
    pub time: Seconds,
    /// Of `time`, what copies between GPU and host take.
    pub copies: Seconds,
    /// Of `time`, what the samples take on their way through the controller.
    pub transfers: Seconds,
}

/// A forecast of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct RlForecast {
    /// The time of a step, of many in a row.
    pub step: Seconds,
    /// The phases in order.
    pub phases: Vec<PhaseTime>,
    /// Tokens of prompts and answers of a step, for each second and GPU.
    pub tokens_per_s_per_gpu: f64,
    /// Tokens of a sample in the mean.
    pub mean_length: f64,
    /// How generation goes.
    pub generation: Generated,
    /// The memory of each phase.
    pub memory: Vec<PhaseMemory>,
    /// The memory of a node's host; `None` if nothing is offloaded, or if the catalog does not know the host.
    pub host: Option<HostMemory>,
}

/// Why a loop has no forecast.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RlError {
    /// The engine cannot serve the answers.
    #[error("generation: {0}")]
    Generation(#[from] ServingError),
    /// The training plan is not possible with these samples.
    #[error("training: {0}")]
    Training(String),
}

impl RlForecast {
    /// The time of a phase; zero if the algorithm lacks it.
    pub fn time(&self, phase: Phase) -> Seconds {
        self.phases.iter().filter(|part| part.phase == phase).map(|part| part.time).sum()
    }

    /// The phase that decides the step's time: the longest, of those on the line that ends last where lines run beside each other.
    pub fn limit(&self) -> &PhaseTime {
        let end = |lane: Lane| -> Seconds {
            self.phases.iter().filter(|part| part.lane == lane).map(|part| part.time).sum()
        };
        let lane = if end(Lane::Engine) > end(Lane::Training) { Lane::Engine } else { Lane::Training };
        let in_turns = end(Lane::Engine) + end(Lane::Training) + end(Lane::Both) <= self.step * (1.0 + 1e-9);
        let on_it =
            self.phases.iter().filter(|part| in_turns || part.lane == lane || part.lane == Lane::Both);
        on_it.max_by(|one, other| one.time.get().total_cmp(&other.time.get())).expect("a step has phases")
    }

    /// Why it does not fit, phase by phase, and on the host; empty if it does.
    pub fn faults(&self) -> Vec<String> {
        let of_phases = self.memory.iter().filter_map(PhaseMemory::fault);
        of_phases.chain(self.host.as_ref().and_then(HostMemory::fault)).collect()
    }
}

/// What the passes of training take, whatever generation does.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingTimes {
    /// Tokens of each sample, prompt and answer.
    pub lengths: Vec<usize>,
    /// The actor's plan with the microbatches of the longest update of an epoch: its step is that update.
    pub actor: Plan,
    /// The critic's.
    pub critic: Option<Plan>,
    /// One forward pass of the actor over all samples, and of the critic.
    pub forward: [Seconds; 2],
    /// All updates of the actor, and of the critic.
    pub update: [Seconds; 2],
}

/// The passes of training over the samples of a step.
///
/// # Errors
/// `Training`.
pub fn training_times(plan: &RlPlan) -> Result<TrainingTimes, RlError> {
    let job = &plan.job;
    let lengths = job.sample_lengths();
    let longest = lengths.iter().max().copied().unwrap_or(1);
    let pack = plan.pack.max(longest.next_multiple_of(plan.actor.mesh.context));
    let balance = plan.controller.balance_in(plan.mode);
    let forward = |of: &Plan| forward_over(of, &lengths, pack).map_err(RlError::Training);
    let update = |of: &Plan| {
        let updates = updates(of, &lengths, job.mini_batches, pack, balance).map_err(RlError::Training)?;
        Ok::<(Plan, Seconds), RlError>((updates.longest, job.epochs as f64 * updates.time))
    };
    let needs_forward = job.phases().any(|phase| [Phase::OldLogProb, Phase::RefLogProb].contains(&phase));
    let of_actor = if needs_forward { forward(&plan.actor)? } else { Seconds::ZERO };
    let (actor, actor_updates) = update(&plan.actor)?;
    let (critic, of_critic) = match &plan.critic {
        Some(critic) => {
            let (longest, updates) = update(critic)?;
            (Some(longest), [forward(critic)?, updates])
        }
        None => (None, [Seconds::ZERO; 2]),
    };
    Ok(TrainingTimes {
        actor,
        critic,
        forward: [of_actor, of_critic[0]],
        update: [actor_updates, of_critic[1]],
        lengths,
    })
}

/// The forecast of a step.
///
/// # Errors
/// `RlError`.
pub fn rl_forecast(plan: &RlPlan) -> Result<RlForecast, RlError> {
    let training = training_times(plan)?;
    Ok(assembled(plan, &training, generate(plan)?))
}

/// The forecast of a step whose passes and generation are known.
///
/// ```text
/// colocated      T = Σ phases
/// disaggregated  T = Σ phases, each on its GPUs
/// streamed       T = max(generation + training / k, generation / k + training) + sync, k parts
/// one step off   T = max(generation, training) + sync; training is reward, probabilities and updates
/// asynchronous   the same; generation is the time in which as many answers end as a step has, see `generate`
/// ```
pub fn assembled(plan: &RlPlan, training: &TrainingTimes, generation: Generated) -> RlForecast {
    let none = Seconds::ZERO;
    let times = |of: Option<&Plan>| match (of, plan.mode) {
        (Some(of), Mode::Colocated { offload: true }) => host_times(of, &plan.controller),
        _ => HostTimes { state: none, weights: none },
    };
    let copies = [times(Some(&training.actor)), times(training.critic.as_ref())];
    let of_pass = |copies: &HostTimes| match plan.controller.offloads_between_passes {
        true => copies.weights,
        false => none,
    };
    let splits = plan.mode.splits_gpus();
    let (engine, both) = match splits {
        true => (Lane::Engine, Lane::Both),
        false => (Lane::Training, Lane::Training),
    };
    let of_phase = |phase: Phase| {
        let (lane, time, copies) = match phase {
            Phase::Generation => (engine, generation.time, none),
            Phase::Reward => (Lane::Training, none, none),
            Phase::OldLogProb | Phase::RefLogProb => {
                (Lane::Training, training.forward[0], of_pass(&copies[0]))
            }
            Phase::Values => (Lane::Training, training.forward[1], of_pass(&copies[1])),
            Phase::CriticUpdate => (Lane::Training, training.update[1], copies[1].state),
            Phase::ActorUpdate => (Lane::Training, training.update[0], copies[0].state),
            Phase::WeightSync => (both, sync_time(plan), none),
        };
        let transfers = transfer_time(plan, phase);
        PhaseTime { phase, lane, start: none, time: time + copies + transfers, copies, transfers }
    };
    let mut phases: Vec<PhaseTime> = plan.job.phases().map(of_phase).collect();
    let step = lay_out(plan.mode, &mut phases);
    let lengths = &training.lengths;
    let tokens: usize = lengths.iter().sum();
    let LoopMemory { phases: memory, host } =
        loop_memory(plan, &training.actor, training.critic.as_ref(), &generation);
    RlForecast {
        step,
        phases,
        tokens_per_s_per_gpu: tokens as f64 / step.get() / plan.gpus() as f64,
        mean_length: tokens as f64 / lengths.len().max(1) as f64,
        generation,
        memory,
        host,
    }
}

/// Samples through the controller, which holds all of them padded.
///
/// T = s l b / ρ
///
/// s samples, l tokens of a padded one, b bytes for each that the phase takes and gives, ρ the rate of writing and reading them.
fn transfer_time(plan: &RlPlan, phase: Phase) -> Seconds {
    let Some(batch) = &plan.controller.batch else { return Seconds::ZERO };
    let each = match phase {
        Phase::Generation => batch.generated.value,
        Phase::OldLogProb | Phase::RefLogProb | Phase::Values => batch.forward.value,
        Phase::CriticUpdate | Phase::ActorUpdate => batch.update.value,
        Phase::Reward | Phase::WeightSync => return Seconds::ZERO,
    };
    (plan.job.samples() * plan.padded) as f64 * each / batch.rate.value
}

/// Sets the starts; returns the end of the step.
fn lay_out(mode: Mode, phases: &mut [PhaseTime]) -> Seconds {
    let overlaps = matches!(mode, Mode::OneStepOff | Mode::Async { .. } | Mode::Streamed { .. });
    let sum = |phases: &[PhaseTime], lane: Lane| -> Seconds {
        phases.iter().filter(|part| part.lane == lane).map(|part| part.time).sum()
    };
    let first = match mode {
        // Training begins with the first part, and ends no earlier than a part after the last answer.
        Mode::Streamed { parts } => {
            let (generation, all) = (sum(phases, Lane::Engine), sum(phases, Lane::Training));
            let part = 1.0 / parts.max(1) as f64;
            (part * generation).max(generation - (1.0 - part) * all)
        }
        _ => Seconds::ZERO,
    };
    let (mut training, mut engine) = (first, Seconds::ZERO);
    for part in phases {
        let from = match part.lane {
            Lane::Engine if overlaps => engine,
            Lane::Training if overlaps => training,
            _ => training.max(engine),
        };
        part.start = from;
        let end = from + part.time;
        match part.lane {
            Lane::Engine => engine = end,
            Lane::Training => training = end,
            Lane::Both => (training, engine) = (end, end),
        }
    }
    training.max(engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(phase: Phase, lane: Lane, seconds: f64) -> PhaseTime {
        let time = Seconds::new(seconds);
        let none = Seconds::ZERO;
        PhaseTime { phase, lane, start: none, time, copies: none, transfers: none }
    }

    #[test]
    fn phases_are_in_line_or_beside_each_other() {
        let check = |mode: Mode, expected: f64| {
            let engine = if mode.splits_gpus() { Lane::Engine } else { Lane::Training };
            let mut phases = [
                part(Phase::Generation, engine, 10.0),
                part(Phase::OldLogProb, Lane::Training, 3.0),
                part(Phase::ActorUpdate, Lane::Training, 4.0),
                part(Phase::WeightSync, Lane::Both, 1.0),
            ];
            assert_eq!(lay_out(mode, &mut phases), Seconds::new(expected), "{mode:?}");
        };
        check(Mode::Colocated { offload: false }, 18.0);
        check(Mode::Disaggregated, 18.0);
        check(Mode::OneStepOff, 11.0);
        // Seven of training in four parts behind ten of generation.
        check(Mode::Streamed { parts: 4 }, 12.75);
        check(Mode::Async { staleness: 0.5 }, 11.0);
    }
}
