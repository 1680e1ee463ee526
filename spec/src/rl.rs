//! Reinforcement learning of a language model as a loop: the phases of a step, what is in a step, and how its phases share GPUs.
//!
//! ```text
//! generation ─► reward ─► old, reference log-probabilities, values ─► updates of actor and critic ─► weights to the engine
//! ```
//!
//! A step generates `prompts × rollouts` answers, judges them, and trains on them. Which phases there are is the algorithm's; on
//! which GPUs each runs, and which run at the same time, is the mode's.

mod algorithm;
mod controller;
mod lengths;
mod mode;
mod sync;

pub use algorithm::{ALGORITHMS, Algorithm, Phase, algorithm};
pub use controller::{Balance, BatchTransfer, Controller};
pub use lengths::ResponseLengths;
pub use mode::Mode;
pub use sync::SyncMethod;

use crate::cluster::Cluster;
use crate::plan::Plan;
use crate::serving::ServingPlan;

/// What a step of the loop does.
#[derive(Debug, Clone, PartialEq)]
pub struct RlJob {
    /// The phases.
    pub algorithm: &'static Algorithm,
    /// Prompts of a step.
    pub prompts: usize,
    /// Answers to each prompt.
    pub rollouts: usize,
    /// Tokens of a prompt, in the mean.
    pub prompt: usize,
    /// Tokens of the answers.
    pub responses: ResponseLengths,
    /// Updates of an epoch, each over an even part of the answers.
    pub mini_batches: usize,
    /// How often the answers of a step are trained on.
    pub epochs: usize,
    /// Whether the engine's own log-probabilities stand for the old ones, so that the actor computes none before its update.
    pub engine_log_probs: bool,
}

impl RlJob {
    /// The phases of a step, in order.
    pub fn phases(&self) -> impl Iterator<Item = Phase> + '_ {
        let phases = self.algorithm.phases.iter().copied();
        phases.filter(|phase| !(self.engine_log_probs && *phase == Phase::OldLogProb))
    }

    /// Answers of a step.
    pub fn samples(&self) -> usize {
        self.prompts * self.rollouts
    }

    /// Tokens of each sample, prompt and answer, in the order in which prompts are asked.
    pub fn sample_lengths(&self) -> Vec<usize> {
        self.responses.drawn(self.samples()).into_iter().map(|answer| self.prompt + answer).collect()
    }
}

/// Every choice about how a loop runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RlPlan {
    /// What a step does.
    pub job: RlJob,
    /// How the phases share GPUs and time.
    pub mode: Mode,
    /// The actor's training on its GPUs. The tokens of its microbatches and their number follow from the samples' lengths; its
    /// `job.sequence` and `job.global_batch` do not count.
    pub actor: Plan,
    /// The critic's training on the same GPUs, if there is one.
    pub critic: Option<Plan>,
    /// Tokens that are packed into a microbatch at most; a longer sample has one of its own.
    pub pack: usize,
    /// One instance of the engine.
    pub engine: ServingPlan,
    /// The GPUs of generation: those of training where phases are colocated.
    pub generation: Cluster,
    /// How weights get to the engine.
    pub sync: SyncMethod,
    /// The software that runs it.
    pub controller: Controller,
    /// Tokens of a sample as the controller pads it: the most of a prompt and of an answer.
    pub padded: usize,
}

impl RlPlan {
    /// Instances of the engine.
    pub fn replicas(&self) -> usize {
        (self.generation.gpus() / self.engine.gpus()).max(1)
    }

    /// GPUs of the whole loop.
    pub fn gpus(&self) -> usize {
        let training = self.actor.cluster.gpus();
        if self.mode.splits_gpus() { training + self.generation.gpus() } else { training }
    }
}
