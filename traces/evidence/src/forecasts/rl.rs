//! Forecasts of loops with generation.

use super::forecast;
use crate::runs::{NoPlan, Outcome, PHASE_COLUMNS, Prediction, RlCase, RlFigures, Run};
use trainwright_sim::rl::{RlForecast, rl_forecast, sync_time};
use trainwright_spec::calibration::Calibration;
use trainwright_spec::calibration::residuals::Quantity;
use trainwright_spec::rl::{Mode, Phase};
use trainwright_spec::serving::ServingRanges;
use trainwright_spec::units::Seconds;

/// The ratio of measured to forecast time of what nothing was measured of: assumed.
const UNKNOWN: [f64; 2] = [0.5, 2.0];

/// The forecast of a loop. Its range adds those of its phases, that of training and that of the engine, as if they were
/// independent.
pub(super) fn predict(run: &Run, mut case: RlCase, calibration: &Calibration) -> Result<Prediction, NoPlan> {
    let plan = &mut case.plan;
    for training in [Some(&mut plan.actor), plan.critic.as_mut()].into_iter().flatten() {
        calibration.apply(&mut training.cluster, &mut training.stack);
    }
    let plan = &case.plan;
    let (training, _) = forecast(&plan.actor)?;
    let traits = training.traits.clone();
    let known = calibration.distribution(Quantity::Time, &traits, Some(&run.family()));
    let of_training = known.map_or(UNKNOWN, |known| {
        let range = case.completed.widened(known.range(), Quantity::Time);
        [range.low, range.high]
    });
    let engine = ServingRanges::of_catalog().of("tpot", &plan.engine.engine.name);
    let of_engine = engine.map_or(UNKNOWN, |range| [range.low, range.high]);
    let range_of = |phase: Phase| match phase {
        Phase::Generation => of_engine,
        Phase::WeightSync => UNKNOWN,
        _ => of_training,
    };
    let figures = |times: &dyn Fn(Phase) -> Seconds, faults: Vec<String>| RlFigures {
        phases: PHASE_COLUMNS.map(|(_, phases)| {
            let has = |phase: &&Phase| plan.job.phases().any(|known| known == **phase);
            let mut time = [0.0; 3];
            for phase in phases.iter().filter(has) {
                let [low, high] = range_of(*phase);
                let seconds = times(*phase).get();
                time = [time[0] + seconds, time[1] + low * seconds, time[2] + high * seconds];
            }
            (time[0] > 0.0).then_some(time)
        }),
        faults,
    };
    let remark = remark(&case);
    if case.sync_only {
        let time = sync_time(plan);
        let of = |phase: Phase| if phase == Phase::WeightSync { time } else { Seconds::ZERO };
        let rl = figures(&of, Vec::new());
        // The step is the hand-over.
        let step_seconds = time.get();
        let band = Some((UNKNOWN[0], UNKNOWN[1]));
        return Ok(Prediction { step_seconds, remark, band, rl: Some(rl), memory_band: None, ..training });
    }
    let of_loop = rl_forecast(plan).map_err(|error| NoPlan::Unsupported(error.to_string()))?;
    let step = of_loop.step.get();
    let band = band(&of_loop, plan.mode, range_of);
    let faults = of_loop.faults();
    let most = of_loop.memory.iter().map(|phase| phase.total().get() / 1e9).fold(0.0, f64::max);
    let waits = waits(&of_loop, plan.mode);
    let times = |phase: Phase| match phase {
        // Beside training the trainer's wait is what its users print.
        Phase::Generation => waits,
        phase => of_loop.time(phase),
    };
    let tokens = of_loop.mean_length * plan.job.samples() as f64;
    Ok(Prediction {
        remark,
        band: Some(band),
        memory_band: None,
        places: [None; 2],
        fits_with: None,
        step_seconds: step,
        tokens_per_gpu: tokens / plan.gpus() as f64,
        mfu_percent: training.mfu_percent * of_loop.time(Phase::ActorUpdate).get() / step,
        peak_memory_gb: most,
        reserved_gb: None,
        used_memory_gb: most,
        outcome: if faults.is_empty() { Outcome::Fits } else { Outcome::OutOfMemory },
        rl: Some(figures(&times, faults)),
        ..training
    })
}

/// What the trainer waits for samples: generation, or what of it training does not hide.
fn waits(of_loop: &RlForecast, mode: Mode) -> Seconds {
    let generation = of_loop.time(Phase::Generation);
    match mode {
        Mode::Colocated { .. } | Mode::Disaggregated => generation,
        Mode::Streamed { .. } | Mode::OneStepOff | Mode::Async { .. } => {
            let sync = of_loop.time(Phase::WeightSync);
            let busy: Seconds = of_loop
                .phases
                .iter()
                .filter(|part| ![Phase::Generation, Phase::WeightSync].contains(&part.phase))
                .map(|part| part.time)
                .sum();
            (of_loop.step - sync - busy).max(Seconds::ZERO)
        }
    }
}

/// The ends of the step's range over its time: distances of phases on the line that ends last, their squares added.
fn band(of_loop: &RlForecast, mode: Mode, range_of: impl Fn(Phase) -> [f64; 2]) -> (f64, f64) {
    let overlaps = matches!(mode, Mode::OneStepOff | Mode::Async { .. });
    let limit = of_loop.limit().lane;
    let (mut below, mut above) = (0.0, 0.0);
    for part in &of_loop.phases {
        if overlaps && part.lane != limit && part.phase != Phase::WeightSync {
            continue;
        }
        let [low, high] = range_of(part.phase);
        below += ((1.0 - low) * part.time.get()).powi(2);
        above += ((high - 1.0) * part.time.get()).powi(2);
    }
    let step = of_loop.step.get();
    ((1.0 - below.sqrt() / step).max(0.05), 1.0 + above.sqrt() / step)
}

/// What the forecast does not have from the row.
fn remark(case: &RlCase) -> Option<String> {
    let texts: Vec<&str> =
        case.completed.assumptions.iter().map(|assumption| assumption.text.as_str()).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}
