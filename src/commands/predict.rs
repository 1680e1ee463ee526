//! `predict`: a forecast for every row of a table of runs.

use crate::arguments::PredictArguments;
use crate::error::{CliError, Outcome};
use crate::render::{run_errors as page, scoreboard};
use crate::{inputs, output};
use rayon::prelude::*;
use trainwright_evidence::training::{NoPlan, Outcome as Fate, Prediction, Run, Summary};
use trainwright_lower::memory::{node_memory, plan_memory, reported_memory};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{fullest, quick_forecast};
use trainwright_spec::calibration::Calibration;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// Runs the command.
///
/// # Errors
/// A table that cannot be read or written. What is wrong with a row is said in that row.
pub fn run(arguments: &PredictArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let table = inputs::table(&arguments.cases)?;
    let runs: Vec<Result<Run, NoPlan>> = table.runs().collect();
    let calibration = inputs::calibration(&arguments.calibration)?;
    let predictions = forecasts(&runs, &calibration);
    if let Some(path) = &arguments.out {
        output::write("--out", path, |out| table.write(&predictions, out))?;
    }
    let summary = Summary::new(runs.iter().zip(&predictions));
    if let Some(folder) = &arguments.scoreboard {
        let rows: Vec<_> = runs.iter().zip(&predictions).collect();
        write_scoreboard(folder, &rows, &summary, &calibration)?;
    }
    if arguments.json {
        output::print(&page::json(&summary))?;
    } else if !alone {
        output::print(&page::summary(&summary))?;
    }
    Ok(Outcome::Done)
}

/// Writes `page.md`, its pictures and `forecasts.csv`.
fn write_scoreboard(
    folder: &str,
    rows: scoreboard::Rows,
    summary: &Summary,
    calibration: &Calibration,
) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|source| CliError::Writing {
        argument: "--scoreboard",
        path: folder.to_string(),
        source,
    })?;
    let page = ("page.md", scoreboard::page(rows, summary, calibration));
    for (name, content) in std::iter::once(page).chain(scoreboard::pictures(rows)) {
        let path = format!("{}/{name}", folder.trim_end_matches('/'));
        output::write("--scoreboard", &path, |out| out.write_all(content.as_bytes()))?;
    }
    let path = format!("{}/forecasts.csv", folder.trim_end_matches('/'));
    output::write("--scoreboard", &path, |out| out.write_all(scoreboard::forecasts(rows).as_bytes()))
}

/// A forecast, or a refusal, for each run, in order.
pub fn forecasts(runs: &[Result<Run, NoPlan>], calibration: &Calibration) -> Vec<Result<Prediction, NoPlan>> {
    let predict = |run: &Run| {
        let mut plan = run.plan()?;
        calibration.apply(&mut plan.cluster, &mut plan.stack);
        Ok(Prediction { band: calibration.band.map(|band| (band.low, band.high)), ..predict(&plan)? })
    };
    runs.par_iter().map(|run| run.as_ref().map_err(NoPlan::clone).and_then(predict)).collect()
}

fn predict(plan: &Plan) -> Result<Prediction, NoPlan> {
    let costs = ClusterCosts::new(&plan.cluster);
    let forecast = quick_forecast(plan, &costs).map_err(|deadlock| NoPlan::Invalid(deadlock.to_string()))?;
    let step = Seconds::from(forecast.step_time);
    let percent = |part| 100.0 * (Seconds::from(part) / step);
    let memory = plan_memory(plan);
    let full = fullest(plan, &memory);
    let used = memory[full].total();
    let beside = node_memory(plan, &memory);
    let fits = used <= plan.node(full).gpu.memory.value && beside.is_none_or(|beside| beside.fits());
    let at_peak = at_peak(plan);
    let printed = reported_memory(plan, &memory);
    Ok(Prediction {
        stack: plan.stack.name.clone(),
        band: None,
        step_seconds: step.get(),
        ideal_seconds: at_peak.get() * (1.0 + bubble(plan)),
        mfu_percent: 100.0 * (at_peak / step),
        peak_memory_gb: if plan.stack.prints_gib { printed.as_gib() } else { printed.get() / 1e9 },
        used_memory_gb: used.get() / 1e9,
        outcome: if fits { Fate::Fits } else { Fate::OutOfMemory },
        bubble_percent: percent(forecast.bubble),
        exposed_percent: percent(forecast.exposed),
    })
}

/// The model's FLOPs, every attention score counted, at the peak of all GPUs.
fn at_peak(plan: &Plan) -> Seconds {
    let flops = plan.model.training_flops(plan.job.sequence, AttentionCount::Full);
    plan.job.global_batch as f64 * flops / plan.peak()
}

/// The bubble of 1F1B over the work: (p − 1) / (v m), p pipeline ranks with v stages each, m microbatches.
fn bubble(plan: &Plan) -> f64 {
    (plan.mesh.pipeline as f64 - 1.0) / (plan.virtual_stages * plan.microbatches()) as f64
}
