//! Forecasts of the runs of a table.

mod rl;

use crate::runs::{Completed, NoPlan, Outcome, Prediction, Run};
use rayon::prelude::*;
use trainwright_lower::memory::{node_memory, plan_memory, reported_memory, reserved_memory};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::likeness::traits_of;
use trainwright_sim::{fullest, quick_forecast};
use trainwright_spec::calibration::Calibration;
use trainwright_spec::calibration::ranges::Distribution;
use trainwright_spec::calibration::residuals::Quantity;
use trainwright_spec::job::Job;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::stack::MemoryReport;
use trainwright_spec::units::{Bytes, Seconds};

/// A forecast, or a refusal, for each run, in order.
pub fn forecasts(runs: &[Result<Run, NoPlan>], calibration: &Calibration) -> Vec<Result<Prediction, NoPlan>> {
    let [forecasts] = forecasts_with(runs, [calibration]);
    forecasts
}

/// A forecast, or a refusal, for each run, in order, with each of these calibrations.
pub fn forecasts_with<const N: usize>(
    runs: &[Result<Run, NoPlan>],
    calibrations: [&Calibration; N],
) -> [Vec<Result<Prediction, NoPlan>>; N] {
    let of_run = |run: &Result<Run, NoPlan>| {
        let run = run.as_ref().map_err(NoPlan::clone)?;
        if run.is_rl() {
            let case = run.rl()?;
            return Ok(calibrations.map(|calibration| rl::predict(run, case.clone(), calibration)));
        }
        let completed = run.completed()?;
        let plan = completed.run.plan()?;
        Ok(calibrations.map(|calibration| predict(run, &completed, plan.clone(), calibration)))
    };
    let refused = |refusal: NoPlan| std::array::from_fn(|_| Err(refusal.clone()));
    let of_run = |run| of_run(run).unwrap_or_else(refused);
    let all: Vec<[Result<Prediction, NoPlan>; N]> = runs.par_iter().map(of_run).collect();
    let mut by_calibration: [Vec<Result<Prediction, NoPlan>>; N] = std::array::from_fn(|_| Vec::new());
    for of_run in all {
        by_calibration.iter_mut().zip(of_run).for_each(|(forecasts, forecast)| forecasts.push(forecast));
    }
    by_calibration
}

/// The forecast of a completed run, whose plan with the numbers of the catalog is given.
fn predict(
    run: &Run,
    completed: &Completed,
    mut plan: Plan,
    calibration: &Calibration,
) -> Result<Prediction, NoPlan> {
    calibration.apply(&mut plan.cluster, &mut plan.stack);
    let (longest, capacity) = forecast(&plan)?;
    let prediction = of_padded(run, completed, &plan, longest)?;
    let recomputed = recomputed(run, &plan).filter(|_| prediction.outcome == Outcome::OutOfMemory);
    let used = recomputed.unwrap_or(prediction.used_memory_gb);
    let mut remark = completed.remark(run, &plan);
    if recomputed.is_some() {
        let text = "fits only with recomputation, which the row does not state";
        remark = Some(remark.map_or(text.into(), |remark| format!("{remark}; {text}")));
    }
    // A range does not rest on runs of the run's source.
    let without = run.family();
    let known = |quantity| calibration.distribution(quantity, &prediction.traits, Some(&without));
    let (time, memory) = (known(Quantity::Time), known(Quantity::Memory));
    let ends = |known: &Distribution, quantity: Quantity| {
        let range = completed.widened(known.range(), quantity);
        (range.low, range.high)
    };
    let place =
        |known: &Option<Distribution>, ratio: Option<f64>| Some(known.as_ref()?.fraction_below(ratio?));
    let time_ratio = run.step_seconds().map(|measured| measured / prediction.step_seconds);
    Ok(Prediction {
        band: time
            .as_ref()
            .map(|known| ends(known, Quantity::Time))
            .or(calibration.band.map(|band| (band.low, band.high))),
        memory_band: memory.as_ref().map(|known| ends(known, Quantity::Memory)),
        places: [place(&time, time_ratio), place(&memory, prediction.memory_ratio(run))],
        fits_with: memory.as_ref().map(|known| known.fraction_below(capacity.get() / 1e9 / used)),
        outcome: if recomputed.is_some() { Outcome::Fits } else { prediction.outcome },
        remark,
        ..prediction
    })
}

/// The memory in GB of the fullest GPU where all blocks are computed again, if row and software leave open what is, and they
/// fit then.
///
/// A run that leaves its recomputation open runs out of memory only if each way to complete it does.
fn recomputed(run: &Run, plan: &Plan) -> Option<f64> {
    if !run.recompute.is_empty() || plan.stack.usual_recompute.is_some() {
        return None;
    }
    let full = |stage: &StageBlocks| StageBlocks(vec![Recompute::Full; stage.0.len()]);
    let plan = Plan { stages: plan.stages.iter().map(full).collect(), ..plan.clone() };
    let (used, _, fits) = use_of_memory(&plan);
    fits.then_some(used.get() / 1e9)
}

/// What the fullest GPU uses, what it has, and whether everything fits.
fn use_of_memory(plan: &Plan) -> (Bytes, Bytes, bool) {
    let memory = plan_memory(plan);
    let full = fullest(plan, &memory);
    let used = memory[full].total();
    let capacity = plan.node(full).gpu.memory.value;
    let fits = used <= capacity && node_memory(plan, &memory).is_none_or(|node| node.fits());
    (used, capacity, fits)
}

/// The forecast of a run whose samples are padded, given that of microbatches of the longest ones: these set its memory, those of a
/// mean length its time. A length that ranks cannot divide is that of the longest.
fn of_padded(
    run: &Run,
    completed: &Completed,
    plan: &Plan,
    longest: Prediction,
) -> Result<Prediction, NoPlan> {
    let lengths = completed.run.padded_lengths().filter(|[_, padded]| *padded < plan.job.sequence);
    let Some([mean, padded]) = lengths else { return Ok(longest) };
    let shorter = Plan { job: Job { sequence: padded, ..plan.job.clone() }, ..plan.clone() };
    if shorter.check(&run.id).is_err() {
        return Ok(longest);
    }
    let (time, _) = forecast(&shorter)?;
    Ok(Prediction {
        tokens_per_gpu: time.tokens_per_gpu * mean as f64 / padded as f64,
        peak_memory_gb: longest.peak_memory_gb,
        reserved_gb: longest.reserved_gb,
        used_memory_gb: longest.used_memory_gb,
        outcome: longest.outcome,
        ..time
    })
}

/// What follows from a plan alone, and the memory of its fullest GPU.
fn forecast(plan: &Plan) -> Result<(Prediction, Bytes), NoPlan> {
    let costs = ClusterCosts::new(&plan.cluster);
    let forecast = quick_forecast(plan, &costs).map_err(|deadlock| NoPlan::Invalid(deadlock.to_string()))?;
    let step = Seconds::from(forecast.step_time);
    let percent = |part| 100.0 * (Seconds::from(part) / step);
    let memory = plan_memory(plan);
    let (used, capacity, fits) = use_of_memory(plan);
    let at_peak = at_peak(plan);
    let in_its_unit = |bytes: Bytes| if plan.stack.prints_gib { bytes.as_gib() } else { bytes.get() / 1e9 };
    let between_steps = matches!(plan.stack.memory_report, MemoryReport::BetweenSteps);
    let prediction = Prediction {
        stack: plan.stack.name.clone(),
        remark: None,
        band: None,
        memory_band: None,
        places: [None; 2],
        fits_with: None,
        traits: traits_of(plan, &forecast),
        step_seconds: step.get(),
        tokens_per_gpu: (plan.job.global_batch * plan.job.sequence) as f64 / plan.cluster.gpus() as f64,
        ideal_seconds: at_peak.get() * (1.0 + bubble(plan)),
        mfu_percent: 100.0 * (at_peak / step),
        peak_memory_gb: in_its_unit(reported_memory(plan, &memory)),
        reserved_gb: between_steps.then(|| in_its_unit(reserved_memory(plan, &memory))),
        used_memory_gb: used.get() / 1e9,
        outcome: if fits { Outcome::Fits } else { Outcome::OutOfMemory },
        bubble_percent: percent(forecast.bubble),
        exposed_percent: percent(forecast.exposed),
        rl: None,
    };
    Ok((prediction, capacity))
}

/// Time of the model's FLOPs (full attention) at the peak of all GPUs.
fn at_peak(plan: &Plan) -> Seconds {
    plan.job.step_flops(&plan.model, AttentionCount::Full) / plan.peak()
}

/// The bubble of 1F1B over the work: (p − 1) / (v m), p pipeline ranks with v stages each, m microbatches.
fn bubble(plan: &Plan) -> f64 {
    (plan.mesh.pipeline as f64 - 1.0) / (plan.virtual_stages * plan.microbatches()) as f64
}
