//! Everything about a plan but its partition and recomputation.

use crate::question::Question;
use trainwright_spec::data::DataOptions;
use trainwright_spec::experts::Routing;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::{Offload, Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::{PipelineShape, Schedule, schedule};

/// Blocks of as equal stages as there can be; where there are more stages than blocks the last has none, then the first.
pub(crate) fn even_lengths(layers: usize, stages: usize) -> Vec<usize> {
    let first = usize::from(stages >= layers + 2);
    let share =
        |stage: usize| layers / stages + usize::from((first..first + layers % stages).contains(&stage));
    (0..stages).map(share).collect()
}

/// One point of the space. The first part says how a rank runs its layers, the second what is done with them:
/// candidates that differ only in that have the same `layout`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub mesh: Mesh,
    pub micro_batch: usize,
    pub precision: Precision,
    pub tensor_scheme: &'static str,
    pub sequence_parallel: bool,
    pub context_scheme: &'static str,
    pub dispatcher: &'static str,

    pub schedule: &'static str,
    pub virtual_stages: usize,
    pub data_sharding: &'static str,
    pub offload: Offload,
}

impl Candidate {
    /// One rank that does everything, in the plainest way.
    pub fn plainest(question: &Question) -> Self {
        Self {
            mesh: Mesh::new(1, 1, 1),
            micro_batch: 1,
            precision: question.job.precision,
            tensor_scheme: "1d",
            sequence_parallel: false,
            context_scheme: "ring",
            dispatcher: "all-to-all",
            schedule: "gpipe",
            virtual_stages: 1,
            data_sharding: "none",
            offload: Offload::default(),
        }
    }

    /// How a rank runs its layers, and the plainest of everything else.
    pub fn layout(&self) -> Self {
        Self {
            mesh: Mesh { shard: None, ..self.mesh },
            schedule: "gpipe",
            virtual_stages: 1,
            data_sharding: "none",
            offload: Offload::default(),
            ..*self
        }
    }

    /// The sizes of its pipeline for a global batch.
    pub fn shape(&self, global_batch: usize) -> PipelineShape {
        PipelineShape {
            ranks: self.mesh.pipeline,
            virtual_stages: self.virtual_stages,
            microbatches: global_batch / (self.mesh.data * self.micro_batch),
        }
    }

    /// Whether the first and the last stage are on one rank.
    pub fn ends_share_a_rank(&self) -> bool {
        let shape = PipelineShape { microbatches: 1, ..self.shape(1) };
        self.schedule().rank_of(0, shape) == self.schedule().rank_of(shape.stages() - 1, shape)
    }

    /// The schedule.
    pub fn schedule(&self) -> &'static dyn Schedule {
        schedule(self.schedule).expect("candidates have schedules of the registry")
    }

    /// Makes these choices in a plan that answers the same question.
    pub fn apply_to(&self, plan: &mut Plan) {
        plan.schedule = self.schedule.into();
        plan.mesh = self.mesh;
        plan.micro_batch = self.micro_batch;
        plan.job.precision = self.precision;
        plan.virtual_stages = self.virtual_stages;
        plan.sequence_parallel = self.sequence_parallel;
        plan.offload = self.offload;
        self.tensor_scheme.clone_into(&mut plan.tensor_scheme);
        self.context_scheme.clone_into(&mut plan.context_scheme);
        self.dispatcher.clone_into(&mut plan.experts.dispatcher);
        self.data_sharding.clone_into(&mut plan.data_sharding);
    }

    /// The plan with these choices and the given stages.
    pub fn plan(&self, question: &Question, stages: Vec<StageBlocks>) -> Plan {
        let mut plan = Plan {
            micro_batch: self.micro_batch,
            schedule: self.schedule.into(),
            virtual_stages: self.virtual_stages,
            tensor_scheme: self.tensor_scheme.into(),
            sequence_parallel: self.sequence_parallel,
            context_scheme: self.context_scheme.into(),
            data_sharding: self.data_sharding.into(),
            stages,
            state: Default::default(),
            offload: self.offload,
            data: DataOptions::default(),
            mesh: self.mesh,
            experts: Routing::default(),
            job: question.job.clone(),
            stack: question.stack.clone(),
            cluster: question.cluster.clone(),
            model: question.model.clone(),
        };
        self.apply_to(&mut plan);
        plan
    }

    /// As equal stages as the model's blocks allow, nothing computed again.
    pub fn even_stages(&self, layers: usize) -> Vec<StageBlocks> {
        let blocks = even_lengths(layers, self.mesh.pipeline * self.virtual_stages);
        blocks.into_iter().map(|blocks| StageBlocks(vec![Recompute::None; blocks])).collect()
    }

    /// In words: `tensor 8, pipeline 4, data 4, microbatch 1`, and whatever else is not the plainest.
    pub fn words(&self) -> String {
        let Mesh { tensor, pipeline, data, context, expert, .. } = self.mesh;
        let mut words = format!("tensor {tensor}, pipeline {pipeline}, data {data}");
        for (name, size) in [("context", context), ("expert", expert)] {
            if size > 1 {
                words += &format!(", {name} {size}");
            }
        }
        if !self.mesh.order.is_default() {
            words += &format!(", ranks {}", self.mesh.order.name());
        }
        words += &format!(", microbatch {}", self.micro_batch);
        if !self.offload.is_none() {
            words += &format!(", {}", self.offload.in_words());
        }
        words
    }
}
