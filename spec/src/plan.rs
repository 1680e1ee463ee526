//! Every choice about how a job runs, in one file that stands alone.

mod check;
mod offload;

pub use check::{MOST, pipeline_allowed, sequence_allowed, tensor_degree_allowed};
pub use offload::Offload;

use crate::cluster::Cluster;
use crate::error::SpecError;
use crate::job::Job;
use crate::mesh::Mesh;
use crate::model::{Block, Model};
use crate::optimizer::{StateBytes, StatePrecision};
use crate::schedule::{PipelineShape, Schedule, schedule};
use crate::stack::Stack;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A complete description of a training run: the choices, and what they were made for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Sequences in a microbatch of one data rank.
    pub micro_batch: usize,
    /// Name of the pipeline schedule.
    pub schedule: String,
    /// Stages on each pipeline rank.
    pub virtual_stages: usize,
    /// Whether what lies between the tensor-parallel layers is split along the sequence (Megatron's).
    pub sequence_parallel: bool,
    /// What of the optimizer is split over the data axis.
    pub data_sharding: DataSharding,
    /// The blocks of each stage and what of them is computed again in backward, in the order of execution.
    pub stages: Vec<StageBlocks>,
    /// In which precision gradients, moments and master weights are kept.
    #[serde(default, skip_serializing_if = "StatePrecision::is_default")]
    pub state: StatePrecision,
    /// What lives beside the GPUs.
    #[serde(default, skip_serializing_if = "Offload::is_none")]
    pub offload: Offload,
    /// Ranks along each axis.
    pub mesh: Mesh,
    /// How much is trained.
    pub job: Job,
    /// The software.
    pub stack: Stack,
    /// On what.
    pub cluster: Cluster,
    /// What is trained.
    pub model: Model,
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

/// What a block computes again in backward instead of keeping it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// The whole block from its input.
    Full,
    /// The attention core: scores, softmax, dropout, values.
    Selective,
    /// Nothing.
    None,
}

impl Recompute {
    /// Every choice.
    pub const ALL: [Recompute; 3] = [Recompute::Full, Recompute::Selective, Recompute::None];

    /// The name in plans, arguments and tables.
    pub fn name(self) -> &'static str {
        match self {
            Recompute::Full => "full",
            Recompute::Selective => "selective",
            Recompute::None => "none",
        }
    }
}

/// The blocks of a stage, each with its recompute choice; written `2 full, 8 none`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StageBlocks(pub Vec<Recompute>);

impl fmt::Display for StageBlocks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let runs: Vec<String> =
            self.0.chunk_by(|a, b| a == b).map(|run| format!("{} {}", run.len(), run[0].name())).collect();
        f.pad(&runs.join(", "))
    }
}

impl FromStr for StageBlocks {
    type Err = String;

    /// Reads `2 full, 8 none`.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: usize = 100_000;
        let mut blocks = Vec::new();
        for run in text.split(',').map(str::trim).filter(|run| !run.is_empty()) {
            let (count, name) = run.split_once(' ').unwrap_or((run, "none"));
            let count: usize = count
                .parse()
                .ok()
                .filter(|count| *count <= MOST)
                .ok_or_else(|| format!("`{run}` does not begin with a number of blocks"))?;
            let recompute = Recompute::ALL
                .into_iter()
                .find(|recompute| recompute.name() == name.trim())
                .ok_or_else(|| format!("`{run}` ends in none of full, selective, none"))?;
            blocks.extend(std::iter::repeat_n(recompute, count));
        }
        Ok(StageBlocks(blocks))
    }
}

impl TryFrom<String> for StageBlocks {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<StageBlocks> for String {
    fn from(blocks: StageBlocks) -> String {
        blocks.to_string()
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
    pub fn schedule(&self) -> &'static dyn Schedule {
        schedule(&self.schedule).expect("a checked plan has a known schedule")
    }

    /// Whether the data axis splits the optimizer state.
    pub fn shards_optimizer(&self) -> bool {
        self.data_sharding == DataSharding::Zero1 && self.mesh.data > 1
    }

    /// What a parameter weighs, if nothing of it is divided.
    pub fn state_bytes(&self) -> StateBytes {
        let precision = self.job.precision;
        let gradients = self.stack.gradient_precision(precision);
        StateBytes::new(self.job.optimizer(), precision, gradients, &self.state)
    }

    /// Parameters in a bucket of gradients.
    pub fn bucket_parameters(&self) -> usize {
        let for_ranks = self.stack.bucket_parameters_per_data_rank.value.saturating_mul(self.mesh.data);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_blocks_are_printed_as_runs_and_read_back() {
        let check = |text: &str, printed: &str, count: usize| {
            let blocks: StageBlocks = text.parse().unwrap();
            assert_eq!((blocks.to_string().as_str(), blocks.0.len()), (printed, count));
        };
        check("2 full, 8 none", "2 full, 8 none", 10);
        check("3", "3 none", 3);
        check("1 full,1 full, 1 selective", "2 full, 1 selective", 3);
        check("", "", 0);
        for (text, part) in [
            ("x full", "does not begin with a number"),
            ("2 half", "ends in none of full"),
            ("999999999 none", "does not begin with a number"),
        ] {
            assert!(text.parse::<StageBlocks>().unwrap_err().contains(part), "{text}");
        }
    }
}
