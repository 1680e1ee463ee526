//! The planner's question and its answer.

use serde::Serialize;
use thiserror::Error;
use trainwright_sim::{Deadlock, Forecast};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::Model;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Bytes, Seconds};

/// What is to be planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// What is trained.
    pub model: Model,
    /// On what.
    pub cluster: Cluster,
    /// How much.
    pub job: Job,
    /// By which software.
    pub stack: Stack,
    /// Choices that are made already.
    pub pins: Pins,
}

/// Choices that the planner must not change; what is none is free.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pins {
    /// Ranks of the tensor axis.
    pub tensor: Option<usize>,
    /// Ranks of the pipeline axis.
    pub pipeline: Option<usize>,
    /// Ranks of the data axis.
    pub data: Option<usize>,
    /// Stages on each pipeline rank.
    pub virtual_stages: Option<usize>,
    /// Sequences in a microbatch.
    pub micro_batch: Option<usize>,
    /// Name of the schedule.
    pub schedule: Option<String>,
    /// Whether norms and dropouts are split along the sequence.
    pub sequence_parallel: Option<bool>,
    /// Name of the data-parallel scheme.
    pub data_sharding: Option<String>,
    /// The same recompute choice for every block.
    pub recompute: Option<Recompute>,
}

/// How far the search is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `bounds`, `partitions` or `simulations`.
    pub phase: &'static str,
    /// Candidates done in this phase.
    pub done: usize,
    /// Candidates of this phase, as far as known.
    pub total: usize,
}

/// The planner's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// At least one plan fits.
    Found(Found),
    /// None does.
    Infeasible(Infeasible),
}

/// Plans that fit, and why the best is the best.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The simulated plans, fastest first.
    pub ranked: Vec<Ranked>,
    /// Why the obvious other choices are not the first of them.
    pub alternatives: Vec<Alternative>,
    /// How the search went.
    pub search: Search,
}

/// A plan with its forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    /// The plan.
    pub plan: Plan,
    /// Its simulated step.
    pub forecast: Forecast,
    /// The planner's estimate of the step before it was simulated: the partition's objective and the optimizer's
    /// update, without the data axis's communication.
    pub estimate: Seconds,
    /// What its time goes to beyond ideal compute, the largest part first, in words.
    pub limited_by: String,
}

/// A choice that one might have expected, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// The choice: `no recomputation`, `tensor 1`, `gpipe`, …
    pub choice: String,
    /// Why it lost.
    pub reason: String,
}

/// How many candidates the search saw and what became of them. A candidate is everything but the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Search {
    /// Combinations of mesh, microbatch, schedule, sequence parallelism and sharding that were looked at.
    pub candidates: usize,
    /// Dropped because no partition and recompute choice fits in memory.
    pub out_of_memory: usize,
    /// Dropped because their lower bound is above the simulated time of enough others.
    pub bounded_out: usize,
    /// Whose layers were split into stages: by the integer program where more than one split is left by its bounds.
    pub solved: usize,
    /// Simulated.
    pub simulated: usize,
}

/// Why nothing fits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Infeasible {
    /// Each limit that is broken, the least broken first.
    pub broken: Vec<BrokenLimit>,
    /// What would mend it, in words.
    pub remedies: Vec<String>,
    /// How the search went.
    pub search: Search,
}

/// A limit that a family of plans breaks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BrokenLimit {
    /// Which plans, in words: `tensor 8, pipeline 2, data 8`.
    pub plans: String,
    /// Which limit, in words: `memory of pipeline rank 0`.
    pub limit: String,
    /// The least that is needed.
    #[serde(rename = "needs_bytes")]
    pub needs: Bytes,
    /// What there is.
    #[serde(rename = "has_bytes")]
    pub has: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// No combination of choices is legal, whatever the memory.
    #[error("no plan is possible: {reason}")]
    NoCandidate {
        /// What stands in the way, with the values.
        reason: String,
    },
    /// A plan whose passes wait for each other: a schedule is wrong.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}
