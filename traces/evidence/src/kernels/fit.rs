//! Coefficients of kernels from measurements.

use super::search::minimum;
use super::{Case, Work};
use crate::statistics::median;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use trainwright_sim::libraries::{Call, Chip, Family};
use trainwright_spec::library::{FittedKernel, Library};
use trainwright_spec::units::Seconds;

/// For all kernels, or all generations of GPUs.
const ANY: &str = "any";

/// No set of coefficients rests on fewer measurements.
const LEAST_ROWS: usize = 12;

/// Of more measurements, this many are taken, evenly.
const MOST_ROWS: usize = 500;

/// An error in logarithms beyond which a measurement counts no more: another kernel, or a disturbed run.
const OUTLIER: f64 = 1.0;

/// Weight of the squared distance to the start, in logarithms: it decides what measurements leave open.
const TO_START: f64 = 1e-3;

/// Family, library, kernel, format and GPUs of a set of coefficients.
type Key<'a> = (&'static str, &'a str, &'a str, &'static str, &'a str);

/// Libraries with coefficients of the least mean absolute error in logarithms.
///
/// A set for each kernel, format and generation of GPUs; and one for each library and format over all of its kernels and
/// generations, for those that were not measured. `source` is what the libraries name as their source.
pub fn fit<'a>(cases: impl IntoIterator<Item = &'a Case>, source: &str) -> Vec<Library> {
    let mut groups: BTreeMap<Key<'a>, Vec<&Case>> = BTreeMap::new();
    for case in cases.into_iter().filter(|case| case.measured.is_some()) {
        let Work::Kernel(call) = &case.work else { continue };
        let (family, format) = (call.family().name, call.format());
        let generation = case.cluster.node.gpu.generation.name();
        for (kernel, on) in [(case.kernel.as_str(), generation), (ANY, ANY)] {
            groups.entry((family, &case.library, kernel, format, on)).or_default().push(case);
        }
    }
    let groups: Vec<_> = groups.into_iter().filter(|(_, cases)| cases.len() >= LEAST_ROWS).collect();
    let fitted: Vec<(&str, FittedKernel)> = groups
        .par_iter()
        .filter_map(|((family, library, kernel, format, on), cases)| {
            let (coefficients, median_error) = coefficients(cases)?;
            let [family, kernel, format, on] = [family, kernel, format, on].map(|name| name.to_string());
            let rows = cases.len();
            Some((*library, FittedKernel { family, kernel, format, on, rows, median_error, coefficients }))
        })
        .collect();
    let names: BTreeSet<&str> = fitted.iter().map(|(library, _)| *library).collect();
    let of = |name: &str| {
        fitted.iter().filter(|(library, _)| *library == name).map(|(_, kernel)| kernel.clone()).collect()
    };
    names
        .into_iter()
        .map(|name| Library { name: name.into(), source: source.into(), kernels: of(name) })
        .collect()
}

/// Coefficients of one family for its measured calls, and the median error; `None` if the GPU of none can do them.
fn coefficients(cases: &[&Case]) -> Option<(BTreeMap<String, f64>, f64)> {
    let Work::Kernel(first) = cases.first()?.work else { return None };
    let family: &Family = first.family();
    let every = cases.len().div_ceil(MOST_ROWS);
    let rows: Vec<(Call, Chip, Seconds)> = cases
        .iter()
        .step_by(every)
        .filter_map(|case| match case.work {
            Work::Kernel(call) => Some((call, Chip::of(&case.cluster), case.measured?)),
            Work::Collective { .. } => None,
        })
        .collect();
    let errors = |point: &[f64]| -> Vec<f64> {
        let values: Vec<f64> = point.iter().map(|value| libm::exp(*value)).collect();
        let error = |(call, chip, measured): &(Call, Chip, Seconds)| {
            Some(libm::log(call.parts(chip, &values)?.total() / *measured).abs())
        };
        rows.iter().filter_map(error).collect()
    };
    let logarithm = |value: f64| libm::log(value);
    let start: Vec<f64> = family.coefficients.iter().map(|known| logarithm(known.start)).collect();
    let bounds: Vec<(f64, f64)> =
        family.coefficients.iter().map(|known| (logarithm(known.low), logarithm(known.high))).collect();
    if errors(&start).len() < LEAST_ROWS {
        return None;
    }
    let loss = |point: &[f64]| {
        let errors = errors(point);
        let away: f64 = point.iter().zip(&start).map(|(value, start)| (value - start).powi(2)).sum();
        errors.iter().map(|error| error.min(OUTLIER)).sum::<f64>() / errors.len() as f64 + TO_START * away
    };
    let found = minimum(&start, &bounds, loss);
    let relative: Vec<f64> = errors(&found).iter().map(|error| libm::exp(*error) - 1.0).collect();
    let round = |value: f64| format!("{value:.3e}").parse().unwrap_or(value);
    let named = family
        .coefficients
        .iter()
        .zip(&found)
        .map(|(known, value)| (known.name.into(), round(libm::exp(*value))));
    Some((named.collect(), round(median(&relative))))
}
