//! One instance of a model with what limits it: the same for tables of runs and for a question of one.

use super::load::Load;
use super::memory::{MemoryUse, memory};
use super::policies::{Policy, policy};
use super::queue::Limits;
use super::simulate::{Served, ServingError, serve};
use super::step::StepModel;
use crate::libraries::Unknown;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::Bytes;

/// Logits are there for at most so many sequences at once.
const LOGITS: usize = 1024;

/// An instance that serves a load.
pub struct Instance<'a> {
    /// Its steps.
    pub steps: StepModel<'a>,
    /// The memory of its fullest GPU.
    pub memory: MemoryUse,
    /// What limits a step.
    pub limits: Limits,
    /// Tokens that the cache of all its attention-data groups has room for.
    pub capacity: usize,
    policy: &'static dyn Policy,
}

impl<'a> Instance<'a> {
    /// An instance on the first GPUs of the cluster, for this load. A step has at most `most` sequences, and no more than the engine
    /// allows.
    ///
    /// # Errors
    /// `Unknown::Kernel` for a number format that no kernel takes.
    ///
    /// # Panics
    /// If the engine names a policy that the registry lacks: `policy` tells.
    pub fn new(
        model: &'a Model,
        plan: &'a ServingPlan,
        cluster: &'a Cluster,
        load: &Load,
        most: Option<usize>,
    ) -> Result<Self, Unknown> {
        let steps = StepModel::new(model, plan, cluster)?;
        let batching = &plan.engine.batching;
        let requests = load.requests();
        let sequences = most.unwrap_or(usize::MAX).min(batching.max_sequences.value);
        let at_once = sequences.min(requests.len());
        let longest = requests.iter().map(|request| request.input).max().unwrap_or(1);
        let tokens = batching.max_tokens.value.min(longest.saturating_mul(at_once));
        let unknown = Unknown::Kernel { family: "product", format: "this format" };
        let memory = memory(model, plan, cluster, tokens, at_once.min(LOGITS)).ok_or(unknown)?;
        Ok(Self {
            steps,
            memory,
            limits: Limits { sequences, tokens: batching.max_tokens.value, block: batching.block.value },
            capacity: memory.capacity() * plan.attention_data,
            policy: policy(&batching.policy).expect("the engine names a policy of the registry"),
        })
    }

    /// Serves the load.
    ///
    /// # Errors
    /// `TooLong` for a sequence that does not fit alone; `Unknown`.
    pub fn serve(&mut self, load: &Load) -> Result<Served, ServingError> {
        serve(&mut self.steps, self.policy, self.limits, self.capacity, load)
    }

    /// The most memory that the fullest GPU held.
    pub fn most_memory(&self, served: &Served) -> Bytes {
        let blocks = served.samples.iter().map(|sample| sample.blocks).max().unwrap_or(0);
        let tokens = blocks * self.limits.block / self.steps.plan().attention_data.max(1);
        self.memory.weights + self.memory.working + tokens as f64 * self.memory.token
    }
}
