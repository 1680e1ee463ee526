//! Errors of forecasts by kind of table and GPU, with all measurements and without those of the GPU.

use super::Case;
use super::fit::fit;
use crate::statistics::{mean, median, quantile};
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::library::Library;

/// Errors of a kind of table on a GPU: |forecast / measured − 1|.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The kind of table.
    pub kind: String,
    /// What the tables call the GPU; blank for all.
    pub machine: String,
    /// With the given coefficients.
    pub known: Errors,
    /// With coefficients from the other GPUs only; `None` if that was not asked for.
    pub left_out: Option<Errors>,
}

/// Statistics of errors.
#[derive(Debug, Clone, PartialEq)]
pub struct Errors {
    /// Rows with a forecast and a measured time.
    pub rows: usize,
    /// Median.
    pub median: f64,
    /// Mean.
    pub mean: f64,
    /// Nine tenths are below.
    pub p90: f64,
}

impl Errors {
    fn of(errors: &[f64]) -> Self {
        let [median, mean, p90] = [median(errors), mean(errors), quantile(errors, 0.9)];
        Self { rows: errors.len(), median, mean, p90 }
    }
}

/// Errors by kind and machine.
type ByKind = BTreeMap<(String, String), Vec<f64>>;

/// The scores of measured cases with the coefficients of `libraries`; with `leave_out` also those with coefficients that are
/// fitted to the cases of all other GPUs.
pub fn scores(cases: &[&Case], libraries: &[Library], leave_out: bool) -> Vec<Score> {
    let known = errors(cases, libraries);
    let machines: BTreeSet<&str> = cases.iter().map(|case| case.machine.as_str()).collect();
    let mut left_out = ByKind::new();
    for machine in machines.into_iter().filter(|_| leave_out) {
        let (own, others): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| case.machine == machine);
        for (key, errors) in errors(&own, &fit(others, "")) {
            left_out.entry(key).or_default().extend(errors);
        }
    }
    let of =
        |key: &(String, String)| leave_out.then(|| Errors::of(left_out.get(key).map_or(&[], Vec::as_slice)));
    known
        .iter()
        .map(|(key, errors)| {
            let (kind, machine) = key.clone();
            Score { kind, machine, known: Errors::of(errors), left_out: of(key) }
        })
        .collect()
}

/// Errors by kind and machine, and of all machines under a blank one.
fn errors(cases: &[&Case], libraries: &[Library]) -> ByKind {
    let mut errors = ByKind::new();
    for case in cases {
        if let Some((forecast, measured)) = case.forecast(libraries).ok().zip(case.measured) {
            let error = (forecast.time / measured - 1.0).abs();
            for machine in [&case.machine, ""] {
                errors.entry((case.kind.into(), machine.into())).or_default().push(error);
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::nearest::published;

    #[test]
    fn median_errors_of_the_published_sample() {
        let cases: Vec<&Case> = published().iter().collect();
        let scores = scores(&cases, Library::all(), false);
        let median = |kind: &str| {
            let of = |score: &&Score| score.kind == kind && score.machine.is_empty();
            scores.iter().find(of).unwrap_or_else(|| panic!("no {kind}")).known.median
        };
        for (kind, most) in [
            ("product", 0.11),
            ("decode attention", 0.12),
            ("prefill attention", 0.13),
            ("latent attention", 0.12),
            ("experts", 0.15),
            ("custom all-reduce", 0.11),
            ("token exchange", 0.14),
            ("states", 0.16),
            ("sparse attention", 0.13),
        ] {
            let median = median(kind);
            assert!(median < most, "{kind}: {median}, not below {most}");
        }
    }

    #[test]
    fn a_gpu_that_is_left_out_is_forecast_from_the_others() {
        let decode = |case: &&Case| case.kind == "decode attention" && case.library == "vllm";
        let cases: Vec<&Case> = published().iter().filter(decode).collect();
        let scores = scores(&cases, Library::all(), true);
        let h200 = scores.iter().find(|score| score.machine == "H200 SXM").unwrap();
        let left_out = h200.left_out.as_ref().unwrap();
        assert_eq!(left_out.rows, h200.known.rows);
        assert!(left_out.median != h200.known.median && left_out.median < 0.3, "{h200:?}");
    }
}
