//! The properties of a plan's forecast by which measured runs resemble it.

use crate::costs::ClusterCosts;
use crate::launches::launches;
use crate::{Deadlock, QuickForecast, fullest, quick_forecast};
use serde::Serialize;
use trainwright_lower::memory::plan_memory;
use trainwright_spec::calibration::ranges::{Distribution, Range};
use trainwright_spec::calibration::residuals::{Kind, Quantity, Spread, Traits};
use trainwright_spec::calibration::{Calibration, restore};
use trainwright_spec::model::Mlp;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::units::Seconds;

/// The properties of a plan whose step takes `step` and of which the fraction `exposed` is exposed communication.
pub fn traits(plan: &Plan, step: Seconds, exposed: f64) -> Traits {
    traits_with(plan, step, exposed, launches(plan))
}

/// The properties of a plan with this forecast.
pub fn traits_of(plan: &Plan, forecast: &QuickForecast) -> Traits {
    let exposed = forecast.exposed.0 as f64 / forecast.step_time.0 as f64;
    let host = forecast.launches.unwrap_or_else(|| launches(plan));
    traits_with(plan, forecast.step_time.into(), exposed, host)
}

fn traits_with(plan: &Plan, step: Seconds, exposed: f64, host: Seconds) -> Traits {
    Traits { kind: kind(plan), exposed: exposed.clamp(0.0, 1.0), host: (host / step).clamp(0.0, 1.0) }
}

/// Those properties that are known before a plan's stages are.
pub fn kind(plan: &Plan) -> Kind {
    let precision = match plan.job.precision {
        Precision::Fp16 => Precision::Bf16,
        other => other,
    };
    Kind {
        experts: plan.model.blocks.iter().any(|run| matches!(run.block.mlp, Mlp::Experts(_))),
        adapters: plan.job.adapters.is_some(),
        generation: plan.cluster.node.gpu.family().into(),
        precision: precision.name().into(),
        spread: Spread::of(&plan.mesh, plan.cluster.node.gpus.value),
    }
}

/// How far a forecast can be trusted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Confidence {
    /// The calibration of the forecast.
    pub calibration: String,
    /// Where its factors are from.
    pub source: String,
    /// The step time without calibration: a ceiling on speed.
    #[serde(rename = "uncalibrated_step_time_s")]
    pub ceiling: Seconds,
    /// The step time times the mean ratio of measured to forecast time of runs of this kind: see `Distribution::expected`.
    #[serde(rename = "expected_step_time_s")]
    pub expected: Seconds,
    /// The range of measured over forecast step times of runs like this one; `None` if the calibration has no runs.
    pub time: Option<Range>,
    /// The range of measured over forecast peak memory.
    pub memory: Option<Range>,
    /// The probability that the fullest GPU has enough memory, by the residuals of memory.
    pub fits_with: Option<f64>,
}

/// How far the forecast of a plan can be trusted that has this calibration, takes `step` and exposes the fraction `exposed` of it.
///
/// # Errors
/// `Deadlock` if the schedule's actions wait for each other.
pub fn confidence(
    plan: &Plan,
    (step, exposed): (Seconds, f64),
    calibration: &Calibration,
) -> Result<Confidence, Deadlock> {
    let mut stated = plan.clone();
    restore(&mut stated.cluster, &mut stated.stack);
    let ceiling = match stated.cluster == plan.cluster && stated.stack == plan.stack {
        true => step,
        false => Seconds::from(quick_forecast(&stated, &ClusterCosts::new(&stated.cluster))?.step_time),
    };
    let traits = traits(plan, step, exposed);
    let of_kind = Distribution::of_kind(&calibration.residuals, Quantity::Time, &traits.kind);
    let of_memory = calibration.distribution(Quantity::Memory, &traits, None);
    let ranks = plan_memory(plan);
    let full = fullest(plan, &ranks);
    let room = plan.node(full).gpu.memory.value / ranks[full].total();
    Ok(Confidence {
        calibration: calibration.name.clone(),
        source: calibration.source.clone(),
        ceiling,
        expected: of_kind.map_or(step, |known| step * known.expected()),
        time: calibration.range(Quantity::Time, &traits, None),
        memory: of_memory.as_ref().map(Distribution::range),
        fits_with: of_memory.map(|known| known.fraction_below(room)),
    })
}
