//! The residuals of measured runs, on which the ranges of forecasts rest.

use super::{Case, Fit};
use crate::forecasts::forecasts;
use crate::runs::{NoPlan, Prediction, Run};
use rayon::prelude::*;
use trainwright_spec::calibration::residuals::{Residual, Residuals};

/// A residual for each run with a measured step time or peak memory, in order.
///
/// The forecast of a step time does not rest on its source: it has the factors of the fit without the source. The runs may be
/// more than the fit had. No factor depends on measured memory, so residuals of memory need no such care.
pub fn residuals(runs: &[Run], fit: &Fit) -> Residuals {
    let all: Vec<Result<Run, NoPlan>> = runs.iter().cloned().map(Ok).collect();
    let predictions = forecasts(&all, &fit.calibration);
    let residual = |(run, prediction): (&Run, &Result<Prediction, NoPlan>)| {
        let prediction = prediction.as_ref().ok()?;
        let source = run.family();
        let time = Case::of(run)
            .and_then(|case| case.residual(fit.without.get(&source).unwrap_or(&fit.calibration)));
        let measured = run.measured_peak_memory_gb.filter(|memory| *memory > 0.0);
        let memory = measured.map(|measured| libm::log(measured / prediction.peak_memory_gb));
        let between_steps = prediction.reserved_gb.is_some();
        let traits = prediction.traits.clone();
        (time.is_some() || memory.is_some()).then_some(Residual {
            source,
            time,
            memory,
            between_steps,
            traits,
        })
    };
    let found: Vec<Option<Residual>> = runs.par_iter().zip(&predictions).map(residual).collect();
    found.into_iter().flatten().collect()
}
