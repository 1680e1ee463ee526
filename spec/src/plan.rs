//! Every choice about how a job runs, in one file that stands alone.

mod check;
mod recompute;
mod schedule_choice;

pub use check::{MOST, pipeline_allowed, sequence_allowed, tensor_degree_allowed};
pub use recompute::{Piece, Pieces, Recompute, StageBlocks};
pub use schedule_choice::ScheduleChoice;

use crate::cluster::Cluster;
use crate::context::{ContextScheme, context_scheme};
use crate::error::SpecError;
use crate::experts::Routing;
use crate::job::Job;
use crate::mesh::Mesh;
use crate::model::{Block, Model};
use crate::schedule::{PipelineShape, Schedule, schedule};
use crate::stack::Stack;
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
    /// How the ranks of the context axis share attention.
    #[serde(default = "ring", skip_serializing_if = "is_ring")]
    pub context_scheme: String,
    /// What of the optimizer is split over the data axis.
    pub data_sharding: DataSharding,
    /// The blocks of each stage and what of them is computed again in backward, in the order of execution.
    pub stages: Vec<StageBlocks>,
    /// Ranks along each axis.
    pub mesh: Mesh,
    /// How tokens come to their experts.
    #[serde(default, skip_serializing_if = "Routing::is_default")]
    pub experts: Routing,
    /// How much is trained.
    pub job: Job,
    /// The software.
    pub stack: Stack,
    /// On what.
    pub cluster: Cluster,
    /// What is trained.
    pub model: Model,
}

fn ring() -> String {
    "ring".into()
}

fn is_ring(scheme: &String) -> bool {
    scheme == "ring"
}

/// What data-parallel ranks split among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataSharding {
    /// Nothing: each holds all (DDP).
    None,
    /// The optimizer state (ZeRO-1, Megatron's distributed optimizer).
    Zero1,
}

impl DataSharding {
    /// The name in plans, arguments and tables.
    pub fn name(self) -> &'static str {
        match self {
            DataSharding::None => "none",
            DataSharding::Zero1 => "zero1",
        }
    }
}

impl Plan {
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

    /// Whether the data axis splits the optimizer state.
    pub fn shards_optimizer(&self) -> bool {
        self.data_sharding == DataSharding::Zero1 && self.mesh.weight_copies() > 1
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
