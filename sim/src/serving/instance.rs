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
    /// `Unknown::Format`.
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
        // Each attention-data group has a scheduler with these limits.
        let groups = plan.attention_data;
        let sequences = most.unwrap_or(usize::MAX).min(batching.max_sequences.value * groups);
        let tokens = batching.max_tokens.value * groups;
        let limits = Limits { sequences, tokens, block: batching.block.value };
        let memory = memory_for(model, plan, cluster, limits, load)?;
        Ok(Self {
            steps,
            memory,
            limits,
            capacity: memory.capacity() * plan.attention_data,
            policy: policy(&batching.policy).expect("the engine names a policy of the registry"),
        })
    }

    /// The same instance for another load; steps that were timed serve it too.
    ///
    /// # Errors
    /// `Unknown::Format`.
    pub fn for_load(self, load: &Load) -> Result<Self, Unknown> {
        let (model, plan, cluster) = (self.steps.model(), self.steps.plan(), self.steps.cluster());
        let memory = memory_for(model, plan, cluster, self.limits, load)?;
        Ok(Self { memory, capacity: memory.capacity() * plan.attention_data, ..self })
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
        let running = served.samples.iter().map(|sample| sample.running).max().unwrap_or(0);
        let sequences = running.div_ceil(self.steps.plan().attention_data.max(1));
        let states = sequences as f64 * self.memory.sequence;
        self.memory.weights + self.memory.working + tokens as f64 * self.memory.token + states
    }
}

/// The memory of the fullest GPU while it serves the load.
fn memory_for(
    model: &Model,
    plan: &ServingPlan,
    cluster: &Cluster,
    limits: Limits,
    load: &Load,
) -> Result<MemoryUse, Unknown> {
    let requests = load.requests();
    let at_once = limits.sequences.min(requests.len());
    let longest = requests.iter().map(|request| request.input).max().unwrap_or(1);
    let tokens = limits.tokens.min(longest.saturating_mul(at_once));
    let group = |count: usize| count.div_ceil(plan.attention_data);
    memory(model, plan, cluster, group(tokens), group(at_once).min(LOGITS))
}
