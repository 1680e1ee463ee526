//! Forecasts of the runs of a table.

use crate::runs::{NoPlan, Outcome, Prediction, Run};
use rayon::prelude::*;
use trainwright_lower::memory::{node_memory, plan_memory, reported_memory};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::likeness::traits_of;
use trainwright_sim::{fullest, quick_forecast};
use trainwright_spec::calibration::Calibration;
use trainwright_spec::calibration::ranges::{Distribution, Quantity};
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// A forecast, or a refusal, for each run, in order.
pub fn forecasts(runs: &[Result<Run, NoPlan>], calibration: &Calibration) -> Vec<Result<Prediction, NoPlan>> {
    let predict = |run: &Run| {
        let completed = run.completed()?;
        let mut plan = completed.run.plan()?;
        calibration.apply(&mut plan.cluster, &mut plan.stack);
        let prediction = predict(&plan)?;
        // A range does not rest on runs of the run's source.
        let without = run.family();
        let known = |quantity| calibration.distribution(quantity, &prediction.traits, Some(&without));
        let (time, memory) = (known(Quantity::Time), known(Quantity::Memory));
        let ends = |known: &Distribution, quantity: Quantity| {
            let range = completed.widened(known.range(), quantity);
            (range.low, range.high)
        };
        let place = |known: &Option<Distribution>, measured: Option<f64>, forecast: f64| {
            Some(known.as_ref()?.fraction_below(measured? / forecast))
        };
        let measured_memory = run.measured_peak_memory_gb.filter(|memory| *memory > 0.0);
        let capacity = plan.node(fullest(&plan, &plan_memory(&plan))).gpu.memory.value.get() / 1e9;
        Ok(Prediction {
            band: time
                .as_ref()
                .map(|known| ends(known, Quantity::Time))
                .or(calibration.band.map(|band| (band.low, band.high))),
            memory_band: memory.as_ref().map(|known| ends(known, Quantity::Memory)),
            places: [
                place(&time, run.step_seconds(), prediction.step_seconds),
                place(&memory, measured_memory, prediction.peak_memory_gb),
            ],
            fits_with: memory
                .as_ref()
                .map(|known| known.fraction_below(capacity / prediction.used_memory_gb)),
            remark: completed.remark(run, &plan),
            ..prediction
        })
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
    let node = node_memory(plan, &memory);
    let fits = used <= plan.node(full).gpu.memory.value && node.is_none_or(|node| node.fits());
    let at_peak = at_peak(plan);
    let printed = reported_memory(plan, &memory);
    Ok(Prediction {
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
        peak_memory_gb: if plan.stack.prints_gib { printed.as_gib() } else { printed.get() / 1e9 },
        used_memory_gb: used.get() / 1e9,
        outcome: if fits { Outcome::Fits } else { Outcome::OutOfMemory },
        bubble_percent: percent(forecast.bubble),
        exposed_percent: percent(forecast.exposed),
    })
}

/// Time of the model's FLOPs (full attention) at the peak of all GPUs.
fn at_peak(plan: &Plan) -> Seconds {
    let flops = plan.model.training_flops(plan.job.sequence, AttentionCount::Full);
    plan.job.global_batch as f64 * flops / plan.peak()
}

/// The bubble of 1F1B over the work: (p − 1) / (v m), p pipeline ranks with v stages each, m microbatches.
fn bubble(plan: &Plan) -> f64 {
    (plan.mesh.pipeline as f64 - 1.0) / (plan.virtual_stages * plan.microbatches()) as f64
}
