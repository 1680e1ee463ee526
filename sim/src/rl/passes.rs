//! Passes over the samples of a step: forward alone, and training.

use super::packing::{Packed, equivalent_length, packed, packed_by_step};
use crate::costs::ClusterCosts;
use crate::simulate::Stopwatch;
use crate::{Deadlock, Detail, Halt, quick_forecast};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use trainwright_lower::lower_forward;
use trainwright_spec::job::Job;
use trainwright_spec::plan::Plan;
use trainwright_spec::rl::{Balance, RlJob};
use trainwright_spec::schedule::PipelineShape;
use trainwright_spec::units::{Picoseconds, Seconds};

/// Pipelines of microbatches that are simulated whole; more are extrapolated from two shorter runs.
const WHOLE: usize = 6;

/// Tokens of a sample are a multiple of this, or of what the ranks that share a sample need.
pub const SEQUENCE_UNIT: usize = 16;

/// Equal samples that stand for packed ones: they have the same tokens and the same work of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EqualSamples {
    /// Tokens of a sample.
    pub sequence: usize,
    /// Samples of a microbatch.
    pub micro_batch: usize,
    /// Microbatches of the longest update.
    pub microbatches: usize,
}

impl EqualSamples {
    /// b samples of s tokens in a microbatch, b s the tokens of one on the fullest rank, s = Σ l² / Σ l as far as that allows, a
    /// multiple of `unit`.
    fn new(lengths: &[usize], shapes: &[Packed], unit: usize) -> Self {
        let microbatches: usize = shapes.iter().map(|shape| shape.microbatches).sum();
        let tokens: usize = shapes.iter().map(|shape| shape.tokens).sum();
        let each = tokens as f64 / microbatches.max(1) as f64;
        let micro_batch = (each / equivalent_length(lengths)).round().max(1.0);
        Self {
            sequence: ((each / micro_batch).ceil().max(1.0) as usize).next_multiple_of(unit),
            micro_batch: micro_batch as usize,
            microbatches: shapes.iter().map(|shape| shape.microbatches).max().unwrap_or(1),
        }
    }

    /// Those of a loop's updates over `data` ranks, with at most `pack` tokens in a microbatch.
    pub fn of_updates(job: &RlJob, data: usize, pack: usize, balance: Balance, unit: usize) -> Self {
        let lengths = job.sample_lengths();
        Self::new(&lengths, &shapes(&lengths, data, job.mini_batches, pack, balance), unit)
    }

    /// Those of a forward pass over all samples.
    pub fn of_forward(job: &RlJob, data: usize, pack: usize, unit: usize) -> Self {
        let lengths = job.sample_lengths();
        Self::new(&lengths, &[packed(&lengths, data, pack)], unit)
    }
}

/// The plan with equal samples.
///
/// # Errors
/// What `Plan::check` says of it.
fn with_samples(plan: &Plan, lengths: &[usize], shapes: &[Packed]) -> Result<Plan, String> {
    let unit = (2 * plan.mesh.context * plan.mesh.tensor).max(SEQUENCE_UNIT);
    let EqualSamples { sequence, micro_batch, microbatches } = EqualSamples::new(lengths, shapes, unit);
    let microbatches = microbatches.next_multiple_of(unit_of_microbatches(plan));
    let job = Job { sequence, global_batch: micro_batch * plan.mesh.data * microbatches, ..plan.job.clone() };
    let plan = Plan { micro_batch, job, ..plan.clone() };
    plan.check("").map_err(|error| error.to_string())?;
    Ok(plan)
}

/// The numbers of microbatches that the schedule runs are multiples of this.
fn unit_of_microbatches(plan: &Plan) -> usize {
    let shape = plan.pipeline_shape();
    let runs = |microbatches| plan.schedule().check(PipelineShape { microbatches, ..shape }).is_ok();
    if runs(1) && runs(shape.ranks + 1) { 1 } else { shape.ranks }
}

/// The updates of an epoch.
pub(super) struct Updates {
    /// The plan whose step is the longest of them.
    pub(super) longest: Plan,
    /// What all of them take.
    pub(super) time: Seconds,
}

/// `mini_batches` updates, each over an even part of the samples in their order, or of each rank's share.
///
/// # Errors
/// A reason in words: a plan that is not possible, or a deadlock.
pub(super) fn updates(
    plan: &Plan,
    lengths: &[usize],
    mini_batches: usize,
    pack: usize,
    balance: Balance,
) -> Result<Updates, String> {
    let shapes = shapes(lengths, plan.mesh.data, mini_batches, pack, balance);
    let plan = with_samples(plan, lengths, &shapes)?;
    let unit = unit_of_microbatches(&plan);
    let costs = ClusterCosts::new(&plan.cluster);
    let mut known: BTreeMap<usize, Seconds> = BTreeMap::new();
    let mut all = Seconds::ZERO;
    for shape in shapes {
        let microbatches = shape.microbatches.next_multiple_of(unit);
        if let Entry::Vacant(unknown) = known.entry(microbatches) {
            let global_batch = microbatches * plan.micro_batch * plan.mesh.data;
            let step = Plan { job: Job { global_batch, ..plan.job.clone() }, ..plan.clone() };
            let forecast = quick_forecast(&step, &costs).map_err(|deadlock| deadlock.to_string())?;
            unknown.insert(forecast.step_time.into());
        }
        all += known[&microbatches];
    }
    Ok(Updates { longest: plan, time: all })
}

/// The microbatches of each of a loop's updates over `data` ranks.
pub fn microbatches_of_updates(job: &RlJob, data: usize, pack: usize, balance: Balance) -> Vec<usize> {
    let shapes = shapes(&job.sample_lengths(), data, job.mini_batches, pack, balance);
    shapes.into_iter().map(|shape| shape.microbatches).collect()
}

/// What the fullest rank does in each update.
fn shapes(lengths: &[usize], data: usize, mini_batches: usize, pack: usize, balance: Balance) -> Vec<Packed> {
    match balance {
        Balance::MiniBatch => {
            let parts = lengths.chunks(lengths.len().div_ceil(mini_batches.max(1)).max(1));
            parts.map(|part| packed(part, data, pack)).collect()
        }
        Balance::Step => packed_by_step(lengths, data, mini_batches, pack),
    }
}

/// Time of one forward pass over all samples.
///
/// # Errors
/// As `updates`.
pub(super) fn forward_over(plan: &Plan, lengths: &[usize], pack: usize) -> Result<Seconds, String> {
    let shape = packed(lengths, plan.mesh.data, pack);
    let plan = with_samples(plan, lengths, &[shape])?;
    forward_time(&plan).map_err(|deadlock| deadlock.to_string())
}

/// Time of the forward passes of a plan's step without anything else: probabilities of given tokens.
///
/// Of many microbatches m: T(m) = T(b) + (m − b) / p (T(b) − T(b − p)), p pipeline ranks, b = 6 p: once the pipeline is full,
/// each p more take the same time.
///
/// # Errors
/// `Deadlock` if the schedule's actions wait for each other.
pub fn forward_time(plan: &Plan) -> Result<Seconds, Deadlock> {
    let (p, m) = (plan.mesh.pipeline, plan.microbatches());
    let whole = WHOLE * p;
    let counts = if m <= whole { vec![m] } else { vec![whole - p, whole] };
    let mut programs = lower_forward(plan, &counts);
    let costs = ClusterCosts::new(&plan.cluster);
    let mut stopwatch = Stopwatch::new(&costs, Detail::Calls, &|| false);
    let mut time = |index: usize| -> Result<Picoseconds, Deadlock> {
        match stopwatch.time(programs.program(index)) {
            Ok(time) => Ok(time),
            Err(Halt::Deadlock(deadlock)) => Err(deadlock),
            Err(Halt::Stopped) => unreachable!("nobody stops it"),
        }
    };
    if m <= whole {
        return Ok(time(0)?.into());
    }
    let (shorter, longer) = (Seconds::from(time(0)?), Seconds::from(time(1)?));
    Ok(longer + ((m - whole) as f64 / p as f64) * (longer - shorter))
}
