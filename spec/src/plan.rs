//! Every choice about how a job runs, in one file. What is written stands alone; what is read may name its model, cluster
//! and software in the catalog.

mod check;
pub(crate) mod named;
mod offload;
mod recompute;
mod schedule_choice;
mod short;

pub use crate::limits::MOST;
pub(crate) use check::check_model;
pub use check::{
    adapters_allowed, pieces_allowed, pipeline_allowed, sequence_allowed, tensor_degree_allowed,
};
pub use offload::Offload;
pub use recompute::{Piece, Pieces, Recompute, StageBlocks};
pub use schedule_choice::ScheduleChoice;

use crate::cluster::Cluster;
use crate::context::{ContextScheme, context_scheme};
use crate::data::{DataOptions, DataScheme, Divided, Exchange, Reduction, Reshard, StepSizes, data_scheme};
use crate::error::SpecError;
use crate::experts::Routing;
use crate::job::Job;
use crate::mesh::Mesh;
use crate::model::{Block, Model};
use crate::optimizer::{MasterWeights, Moments, Rule, StateBytes, StatePrecision};
use crate::program::Axis;
use crate::schedule::{PipelineShape, Schedule, schedule};
use crate::stack::Stack;
use crate::tensor::{Between, Overlap, TensorGrid, TensorScheme, tensor_scheme};
use serde::{Deserialize, Serialize};

/// A complete description of a training run: the choices, and what they were made for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Sequences in a microbatch of one data rank.
    pub micro_batch: usize,
    /// The pipeline schedule.
    pub schedule: ScheduleChoice,
    /// Stages on each pipeline rank.
    pub virtual_stages: usize,
    /// Whether what lies between the tensor-parallel layers is split along the sequence (Megatron's).
    pub sequence_parallel: bool,
    /// Name of the way in which the ranks of the tensor axis share a layer.
    #[serde(default = "one_dimensional", skip_serializing_if = "is_one_dimensional")]
    pub tensor_scheme: String,
    /// How the ranks of the context axis share attention.
    #[serde(default = "ring", skip_serializing_if = "is_ring")]
    pub context_scheme: String,
    /// Name of the data-parallel scheme: what of the training state is split over the data axis.
    pub data_sharding: String,
    /// The blocks of each stage and what of them is computed again in backward, in the order of execution.
    pub stages: Vec<StageBlocks>,
    /// In which precision gradients, moments and master weights are kept.
    #[serde(default, skip_serializing_if = "StatePrecision::is_default")]
    pub state: StatePrecision,
    /// The state that is offloaded from the GPUs.
    #[serde(default, skip_serializing_if = "Offload::is_none")]
    pub offload: Offload,
    /// Choices of the data-parallel scheme that are not its defaults.
    #[serde(default, skip_serializing_if = "DataOptions::is_default")]
    pub data: DataOptions,
    /// Ranks along each axis.
    pub mesh: Mesh,
    /// How tokens come to their experts.
    #[serde(default, skip_serializing_if = "Routing::is_default")]
    pub experts: Routing,
    /// How much is trained.
    pub job: Job,
    /// The software.
    #[serde(deserialize_with = "named::read")]
    pub stack: Stack,
    /// On what.
    #[serde(deserialize_with = "named::read")]
    pub cluster: Cluster,
    /// The model that is trained.
    #[serde(deserialize_with = "named::read")]
    pub model: Model,
}

fn one_dimensional() -> String {
    "1d".into()
}

fn is_one_dimensional(scheme: &str) -> bool {
    scheme == "1d"
}

fn ring() -> String {
    "ring".into()
}

fn is_ring(scheme: &String) -> bool {
    scheme == "ring"
}

impl Plan {
    /// A plan on one rank in which every choice is the plainest: microbatches of one sequence, one stage of all blocks, nothing
    /// divided, recomputed or offloaded. Written as the base of others: `Plan { mesh, ..Plan::plain(model, stack, cluster, job) }`.
    pub fn plain(model: Model, stack: Stack, cluster: Cluster, job: Job) -> Plan {
        Plan {
            micro_batch: 1,
            schedule: "1f1b".into(),
            virtual_stages: 1,
            sequence_parallel: false,
            tensor_scheme: one_dimensional(),
            context_scheme: ring(),
            data_sharding: "none".into(),
            stages: vec![StageBlocks(vec![Recompute::None; model.layers()])],
            state: StatePrecision::default(),
            offload: Offload::default(),
            data: DataOptions::default(),
            mesh: Mesh::new(1, 1, 1),
            experts: Routing::default(),
            job,
            stack,
            cluster,
            model,
        }
    }

    /// Reads and checks a plan. `origin` names the file in messages.
    ///
    /// # Errors
    /// `Syntax` with line and column, or `BadValue` for a choice that is not possible.
    pub fn from_toml(text: &str, origin: &str) -> Result<Plan, SpecError> {
        let plan: Plan = toml::from_str(text)
            .map_err(|error| SpecError::Syntax { origin: origin.into(), message: one_line(&error, text) })?;
        plan.check(origin)?;
        Ok(plan)
    }

    /// Writes a plan as TOML that reads back equal.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a plan has only tables, text and numbers")
    }

    /// The schedule.
    ///
    /// # Panics
    /// If the name is unknown, which `check` has excluded.
    pub fn schedule(&self) -> &dyn Schedule {
        match &self.schedule {
            ScheduleChoice::Named(name) => schedule(name).expect("a checked plan has a known schedule"),
            ScheduleChoice::Actions(custom) => &**custom,
        }
    }

    /// How the ranks of the context axis share attention.
    ///
    /// # Panics
    /// If the name is unknown, which `check` has excluded.
    pub fn context_scheme(&self) -> &'static dyn ContextScheme {
        context_scheme(&self.context_scheme).expect("a checked plan has a known context scheme")
    }

    /// The data-parallel scheme.
    ///
    /// # Panics
    /// If the name is unknown, which `check` has excluded.
    pub fn data_scheme(&self) -> &'static dyn DataScheme {
        data_scheme(&self.data_sharding).expect("a checked plan has a known data-parallel scheme")
    }

    /// Whether the data axis splits this part of the training state.
    pub fn divides(&self, what: Divided) -> bool {
        self.data_scheme().divides() >= what && self.mesh.shard() > 1
    }

    /// How the tensor axis shares a layer.
    ///
    /// # Panics
    /// If the name is unknown, which `check` has excluded.
    pub fn tensor_scheme(&self) -> &'static dyn TensorScheme {
        tensor_scheme(&self.tensor_scheme).expect("a checked plan has a known tensor scheme")
    }

    /// The pipeline rank that has a stage, by its number in actions.
    pub fn pipeline_rank_of(&self, stage: usize) -> usize {
        self.schedule().rank_of(stage, self.pipeline_shape())
    }

    /// Whether other ranks have some of the same weights.
    pub fn replicates_weights(&self) -> bool {
        [Axis::Data, Axis::ExpertData].iter().any(|axis| self.mesh.size(*axis) > 1)
    }

    /// The ranks of the tensor axis.
    pub fn tensor_grid(&self) -> TensorGrid {
        let splits_sequence = self.sequence_parallel && self.mesh.tensor > 1;
        let between = if splits_sequence { Between::Sequence } else { Between::Whole };
        let overlap = if self.stack.overlap_tensor_pieces { Overlap::Overlapped } else { Overlap::Waited };
        TensorGrid::of(&self.mesh, between, overlap)
    }

    /// Whether the data axis splits the optimizer state.
    pub fn shards_optimizer(&self) -> bool {
        self.divides(Divided::Optimizer)
    }

    /// Whether a rank holds its part of the gradients only: where they are divided, and reduced as soon as they are
    /// complete.
    pub fn shards_gradients(&self) -> bool {
        self.divides(Divided::Gradients) && self.reduction() == Reduction::EveryMicrobatch
    }

    /// When gathered weights are given up.
    pub fn reshard(&self) -> Reshard {
        self.data.reshard.unwrap_or(self.data_scheme().reshard())
    }

    /// When gradients are reduced.
    pub fn reduction(&self) -> Reduction {
        self.data.reduce.unwrap_or(self.data_scheme().reduction())
    }

    /// Units of weights gathered ahead.
    pub fn prefetch(&self) -> usize {
        self.data.prefetch.unwrap_or(1)
    }

    /// Ranks of the data axis that are parameter servers; `None` without them.
    pub fn servers(&self) -> Option<usize> {
        (self.data_scheme().exchange() == Exchange::Servers).then(|| self.data.servers.unwrap_or(1))
    }

    /// The sizes that the volume of a step on the data axis depends on, for a rank with `parameters`.
    pub fn step_sizes(&self, parameters: u64) -> StepSizes {
        let gradient = self.state_bytes().gradient;
        StepSizes {
            weights: self.job.precision.storage_bytes() * parameters as f64,
            gradients: gradient * parameters as f64,
            shard: self.mesh.shard(),
            replicas: self.mesh.weight_copies() / self.mesh.shard(),
            microbatches: self.microbatches(),
            reshard: self.reshard(),
            reduction: self.reduction(),
            servers: self.servers().unwrap_or(1),
        }
    }

    /// Bytes of a parameter that is updated element by element, if nothing of it is divided.
    pub fn state_bytes(&self) -> StateBytes {
        self.state_bytes_by(Rule::Elements)
    }

    /// Bytes of a parameter with that rule, if nothing of it is divided.
    pub fn state_bytes_by(&self, rule: Rule) -> StateBytes {
        let precision = self.job.precision;
        let gradients = self.stack.gradient_precision(precision);
        let pure = StatePrecision {
            moments: Moments::Bf16,
            master_weights: MasterWeights::None,
            ..StatePrecision::default()
        };
        let as_loaded =
            self.stack.pure_16_bits && self.state.is_default() && precision.needs_master_weights();
        let state = if as_loaded { &pure } else { &self.state };
        StateBytes::new(self.job.optimizer(), rule, precision, gradients, state)
    }

    /// Parameters in a bucket of gradients.
    pub fn bucket_parameters(&self) -> usize {
        let for_ranks =
            self.stack.bucket_parameters_per_data_rank.value.saturating_mul(self.mesh.weight_copies());
        self.stack.bucket_parameters.value.max(for_ranks)
    }

    /// Microbatches of one data rank in a step.
    pub fn microbatches(&self) -> usize {
        self.job.global_batch / (self.mesh.data * self.micro_batch)
    }

    /// The sizes of the pipeline.
    pub fn pipeline_shape(&self) -> PipelineShape {
        PipelineShape {
            ranks: self.mesh.pipeline,
            virtual_stages: self.virtual_stages,
            microbatches: self.microbatches(),
        }
    }

    /// The blocks of each stage: index in the model, block, recompute.
    pub fn stage_blocks(&self) -> Vec<Vec<(usize, &Block, Recompute)>> {
        let runs = self.model.blocks.iter();
        let mut blocks = runs.flat_map(|run| std::iter::repeat_n(&run.block, run.count)).enumerate();
        let stage = |stage: &StageBlocks| -> Vec<_> {
            let pairs = stage.0.iter().zip(&mut blocks);
            pairs.map(|(recompute, (index, block))| (index, block, *recompute)).collect()
        };
        self.stages.iter().map(stage).collect()
    }
}

/// A TOML error as one line with its place.
pub(crate) fn one_line(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().replace('\n', " ");
    match error.span() {
        Some(span) => {
            let before = &text[..span.start.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            format!("line {line}, column {column}: {message}")
        }
        None => message,
    }
}
