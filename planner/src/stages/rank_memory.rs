//! How full the memory of pipeline ranks is, as `plan_memory` counts it.

use crate::risk::Outlook;
use std::sync::{Arc, OnceLock};
use trainwright_lower::memory::{RankMemory, plan_memory_with, rank_memory_with};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Place;
use trainwright_spec::schedule::{ActionLists, PipelineShape};
use trainwright_spec::units::Bytes;

/// What a pipeline rank would hold, and what it may hold; or a node, of what is not on its GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RankMemoryUse {
    pub rank: usize,
    /// Where, if not in the GPU's memory.
    pub place: Option<Place>,
    pub needs: Bytes,
    pub has: Bytes,
}

impl RankMemoryUse {
    /// During a step; or between steps, if the rank lacks more there.
    fn of(plan: &Plan, rank: usize, memory: &RankMemory, outlook: &Outlook) -> Self {
        let gpu = plan.node(rank).gpu.memory.value;
        let step = Self { rank, place: None, needs: memory.total(), has: outlook.room(gpu) };
        let between = outlook.idle.and_then(|idle| {
            let needs = idle.on_gpu(memory.weights, memory.gradients, memory.optimizer) + idle.beside()?;
            Some(Self { needs, has: gpu, ..step })
        });
        between.filter(|between| between.lack() > step.lack()).unwrap_or(step)
    }

    pub fn fits(&self) -> bool {
        self.needs <= self.has
    }

    /// Who lacks the memory.
    pub fn who(&self) -> String {
        match self.place {
            None => format!("pipeline rank {}", self.rank),
            Some(Place::Host) => "a node's host".into(),
            Some(Place::Nvme) => "a node's drives".into(),
        }
    }

    /// How many times what it can hold it needs.
    pub fn ratio(&self) -> f64 {
        self.needs / self.has
    }

    /// Bytes that it lacks, negative if some are left.
    pub(super) fn lack(&self) -> f64 {
        (self.needs - self.has).get()
    }

    /// The rank that has least memory left, or lacks most.
    pub(super) fn fullest(ranks: &[Self]) -> Self {
        *ranks.iter().max_by(|a, b| a.lack().total_cmp(&b.lack())).expect("a plan has ranks")
    }
}

/// Measures plans that differ in their stages alone.
pub(super) struct MemoryMeter {
    /// Of the step that is looked at, which may be a shorter one.
    global_batch: usize,
    shape: PipelineShape,
    outlook: Outlook,
    /// Made when they are first needed.
    lists: OnceLock<Arc<ActionLists>>,
}

impl MemoryMeter {
    /// Looks at steps of one shape.
    pub fn of(plan: &Plan, shape: PipelineShape, outlook: &Outlook) -> Self {
        let global_batch = shape.microbatches * plan.micro_batch * plan.mesh.data;
        Self { global_batch, shape, outlook: *outlook, lists: OnceLock::new() }
    }

    /// The meter with what the ranks do in such a step.
    pub fn with_lists(self, lists: Arc<ActionLists>) -> Self {
        Self { lists: lists.into(), ..self }
    }

    /// The plan with the step that is looked at.
    pub fn measured(&self, mut plan: Plan) -> Plan {
        plan.job.global_batch = self.global_batch;
        plan
    }

    /// Every rank of a plan with that step.
    pub fn ranks(&self, plan: &Plan) -> Vec<RankMemoryUse> {
        let memory = self.memory(plan);
        let ranks = memory.iter().enumerate();
        ranks.map(|(rank, memory)| RankMemoryUse::of(plan, rank, memory, &self.outlook)).collect()
    }

    /// What every rank of a plan with that step holds.
    pub fn memory(&self, plan: &Plan) -> Vec<RankMemory> {
        plan_memory_with(plan, self.lists(plan))
    }

    /// One rank of a plan with that step.
    pub fn rank(&self, plan: &Plan, rank: usize) -> RankMemoryUse {
        RankMemoryUse::of(plan, rank, &rank_memory_with(plan, self.lists(plan), rank), &self.outlook)
    }

    /// The fullest rank of a plan with any step.
    pub fn fullest(&self, plan: &Plan) -> RankMemoryUse {
        RankMemoryUse::fullest(&self.ranks(&self.measured(plan.clone())))
    }

    fn lists(&self, plan: &Plan) -> &ActionLists {
        self.lists.get_or_init(|| Arc::new(plan.schedule().lists(self.shape)))
    }
}
