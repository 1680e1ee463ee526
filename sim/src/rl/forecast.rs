//! The phases of a step on one line, or on two where generation has GPUs of its own.

use super::generation::{Generated, generate};
use super::memory::{PhaseMemory, phase_memory};
use super::packing::packed;
use super::passes::{forward_over, update_time, with_samples};
use super::sync::{host_time, sync_time};
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

    /// The phase that decides the step's time: the longest on the line that ends last.
    pub fn limit(&self) -> &PhaseTime {
        let end = |lane: Lane| -> Seconds {
            self.phases.iter().filter(|part| part.lane == lane).map(|part| part.time).sum()
        };
        let lane = if end(Lane::Engine) > end(Lane::Training) { Lane::Engine } else { Lane::Training };
        let on_it = self.phases.iter().filter(|part| part.lane == lane || part.lane == Lane::Both);
        on_it.max_by(|one, other| one.time.get().total_cmp(&other.time.get())).expect("a step has phases")
    }

    /// Why it does not fit, phase by phase; empty if it does.
    pub fn faults(&self) -> Vec<String> {
        self.memory.iter().filter_map(PhaseMemory::fault).collect()
    }
}

/// The forecast of a step.
///
/// ```text
/// colocated      T = Σ phases
/// disaggregated  T = Σ phases, each on its GPUs
/// streamed       T = max(generation + training / k, generation / k + training) + sync, k parts
/// one step off   T = max(generation, training) + sync; training is reward, probabilities and updates
/// asynchronous   the same; generation is the time in which as many answers end as a step has, see `generate`
/// ```
///
/// # Errors
/// `RlError`.
pub fn rl_forecast(plan: &RlPlan) -> Result<RlForecast, RlError> {
    let lengths = plan.job.sample_lengths();
    let longest = lengths.iter().max().copied().unwrap_or(1);
    let pack = plan.pack.max(longest.next_multiple_of(plan.actor.mesh.context));
    let sized = |of: &Plan| {
        let shape = packed(&lengths, of.mesh.data, pack);
        with_samples(of, &lengths, &[shape]).map_err(RlError::Training)
    };
    let actor = sized(&plan.actor)?;
    let critic = plan.critic.as_ref().map(sized).transpose()?;
    let generation = generate(plan)?;
    let copies = match plan.mode {
        Mode::Colocated { offload: true } => {
            let of_critic = plan.critic.as_ref().map_or([Seconds::ZERO; 2], |_| {
                critic.as_ref().map_or([Seconds::ZERO; 2], host_time)
            });
            [host_time(&actor), of_critic]
        }
        _ => [[Seconds::ZERO; 2]; 2],
    };
    let both_ways = |[on, off]: [Seconds; 2]| on + off;
    let forward = |of: &Plan| forward_over(of, &lengths, pack).map_err(RlError::Training);
    let epochs = plan.job.epochs as f64;
    let update = |of: &Plan| {
        let once = update_time(of, &lengths, plan.job.mini_batches, pack).map_err(RlError::Training)?;
        Ok::<Seconds, RlError>(epochs * once)
    };
    let of_actor = forward(&plan.actor)?;
    let splits = plan.mode.splits_gpus();
    let mut phases = Vec::new();
    for phase in plan.job.phases() {
        let (lane, time, copies) = match phase {
            Phase::Generation => {
                (if splits { Lane::Engine } else { Lane::Training }, generation.time, Seconds::ZERO)
            }
            Phase::Reward => (Lane::Training, Seconds::ZERO, Seconds::ZERO),
            Phase::OldLogProb | Phase::RefLogProb => (Lane::Training, of_actor, Seconds::ZERO),
            Phase::Values => match &plan.critic {
                Some(critic) => (Lane::Training, forward(critic)?, Seconds::ZERO),
                None => continue,
            },
            Phase::CriticUpdate => match &plan.critic {
                Some(critic) => (Lane::Training, update(critic)?, both_ways(copies[1])),
                None => continue,
            },
            Phase::ActorUpdate => (Lane::Training, update(&plan.actor)?, both_ways(copies[0])),
            Phase::WeightSync => (
                if splits { Lane::Both } else { Lane::Training },
                sync_time(plan),
                Seconds::ZERO,
            ),
        };
        phases.push(PhaseTime { phase, lane, start: Seconds::ZERO, time: time + copies, copies });
    }
    let step = lay_out(plan.mode, &mut phases);
    let tokens: usize = lengths.iter().sum();
    let memory = phase_memory(plan, &actor, critic.as_ref(), &generation);
    Ok(RlForecast {
        step,
        phases,
        tokens_per_s_per_gpu: tokens as f64 / step.get() / plan.gpus() as f64,
        mean_length: tokens as f64 / lengths.len().max(1) as f64,
        generation,
        memory,
    })
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
        PhaseTime { phase, lane, start: Seconds::ZERO, time, copies: Seconds::ZERO }
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
