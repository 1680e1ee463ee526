//! `predict`: a forecast for every row of a table of runs.

use crate::arguments::PredictArguments;
use crate::error::{CliError, Outcome};
use crate::{inputs, output};
use rayon::prelude::*;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::quick_forecast;
use trainwright_spec::memory::{RankMemory, plan_memory};
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_traces::training::{NoPlan, Outcome as Fate, Prediction, Run, Table};

/// Runs the command.
///
/// # Errors
/// A table that cannot be read or written. What is wrong with a row is said in that row.
pub fn run(arguments: &PredictArguments) -> Result<Outcome, CliError> {
    let table = inputs::table(&arguments.cases)?;
    let runs: Vec<Result<Run, NoPlan>> = table.runs().collect();
    let predictions: Vec<Result<Prediction, NoPlan>> =
        runs.par_iter().map(|run| run.as_ref().map_err(NoPlan::clone).and_then(predict)).collect();
    output::write("--out", &arguments.out, |out| table.write(&predictions, out))?;
    Ok(Outcome::Done)
}

fn predict(run: &Run) -> Result<Prediction, NoPlan> {
    let plan = run.plan()?;
    let costs = ClusterCosts { cluster: &plan.cluster };
    let forecast =
        quick_forecast(&plan, &costs).map_err(|deadlock| NoPlan::Invalid(deadlock.to_string()))?;
    let step = Seconds::from(forecast.step_time);
    let percent = |part| 100.0 * (Seconds::from(part) / step);
    let memory = plan_memory(&plan).iter().map(RankMemory::total).fold(Bytes::ZERO, Bytes::max);
    let fits = memory <= plan.cluster.node.gpu.memory.value;
    Ok(Prediction {
        step_seconds: step.get(),
        mfu_percent: 100.0 * mfu(&plan, step),
        peak_memory_gb: memory.get() / 1e9,
        outcome: if fits { Fate::Fits } else { Fate::OutOfMemory },
        bubble_percent: percent(forecast.bubble),
        exposed_percent: percent(forecast.exposed),
    })
}

fn mfu(plan: &Plan, step: Seconds) -> f64 {
    let flops = plan.model.training_flops(plan.job.sequence, AttentionCount::Full);
    let peak = plan.cluster.node.gpu.peak[&plan.job.precision].value * plan.mesh.ranks() as f64;
    plan.job.global_batch as f64 * flops / step / peak
}
