//! A calibration fitted to measured runs, and its errors on sources that were left out.

mod robust;

use crate::runs::Run;
use crate::statistics::{mean, median, quantile};
use rayon::prelude::*;
use robust::Residual;
use std::collections::{BTreeMap, BTreeSet};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::step_time_for_ranking;
use trainwright_spec::calibration::{Band, Calibration, Factor, Figures, Parameter, SourceErrors};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// A calibration and the number of its unknowns.
pub struct Fit {
    /// The calibration.
    pub calibration: Calibration,
    /// Factors that were free.
    pub unknowns: usize,
}

/// Errors of a source's runs: forecast over measured, less one.
struct Source {
    /// Its name.
    name: String,
    /// With the catalog as it is.
    before: Vec<f64>,
    /// With factors from the other sources.
    left_out: Vec<f64>,
    /// With factors from all.
    in_sample: Vec<f64>,
}

/// The figures of each source, and of all.
fn errors_by_source(sources: &[Source]) -> Vec<SourceErrors> {
    let all =
        |of: fn(&Source) -> &Vec<f64>| figures(&sources.iter().flat_map(of).copied().collect::<Vec<f64>>());
    let every = SourceErrors {
        name: "all".into(),
        rows: sources.iter().map(|source| source.before.len()).sum(),
        catalog: all(|source| &source.before),
        left_out: all(|source| &source.left_out),
        in_sample: all(|source| &source.in_sample),
    };
    let by_source = sources.iter().map(|source| SourceErrors {
        name: source.name.clone(),
        rows: source.before.len(),
        catalog: figures(&source.before),
        left_out: figures(&source.left_out),
        in_sample: figures(&source.in_sample),
    });
    by_source.chain([every]).collect()
}

fn figures(errors: &[f64]) -> Figures {
    let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    let tenths = |part: f64| (1000.0 * part).round() / 10.0;
    Figures {
        median: tenths(median(&sizes)),
        mean: tenths(mean(&sizes)),
        signed: tenths(mean(errors)),
        p90: tenths(quantile(&sizes, 0.9)),
    }
}

/// By how much a factor is changed to measure its effect on a step time.
const PROBE: f64 = 1.1;

/// Lower bound of factors that may be 0, for their logarithm.
const LEAST: f64 = 0.05;

/// How much the rows of a source count together: as much as this power of their number.
const WEIGHT_OF_SOURCE: f64 = 0.5;

/// A measured run with its plan.
pub struct Case {
    source: String,
    plan: Plan,
    measured: Seconds,
}

impl Case {
    /// `None` if its step time was not measured, or it has no plan.
    pub fn of(run: &Run) -> Option<Self> {
        let measured = Seconds::new(run.step_seconds()?);
        Some(Self { source: run.family(), plan: run.plan().ok()?, measured })
    }

    /// ln forecast − ln measured.
    fn log_error(&self, calibration: &Calibration) -> Option<f64> {
        let mut plan = self.plan.clone();
        calibration.apply(&mut plan.cluster, &mut plan.stack);
        let step = step_time_for_ranking(&plan, &ClusterCosts::new(&plan.cluster)).ok()?;
        Some((Seconds::from(step) / self.measured).ln())
    }
}

/// A parameter and its owner: an unknown of the fit.
type Unknown = (String, String);

/// Fits the factors of the catalog to measured step times; `source` describes them.
pub fn fit(cases: &[Case], source: String) -> Fit {
    let (unknowns, residuals) = linearised(cases);
    let ranges: Vec<(f64, f64)> = unknowns.iter().map(|(parameter, _)| range(parameter)).collect();
    let solve = |left_out: Option<&str>| {
        let counted = residuals.iter().zip(cases).filter(|(_, case)| Some(case.source.as_str()) != left_out);
        let counted: Vec<Residual> = counted.map(|(residual, _)| residual.clone()).collect();
        calibration(&unknowns, &robust::fit(&counted, &ranges), &source)
    };
    let mut calibration = solve(None);
    let names: BTreeSet<&str> = cases.iter().map(|case| case.source.as_str()).collect();
    let without: BTreeMap<&str, Calibration> = names.iter().map(|name| (*name, solve(Some(name)))).collect();
    let error = |log_error: f64| log_error.exp() - 1.0;
    let after: Vec<[f64; 2]> = cases
        .par_iter()
        .map(|case| [&without[case.source.as_str()], &calibration])
        .zip(cases)
        .map(|(calibrations, case)| calibrations.map(|known| case.log_error(known).map_or(0.0, error)))
        .collect();
    let of = |name: &str| {
        let of_source = || residuals.iter().zip(&after).zip(cases).filter(|(_, case)| case.source == name);
        Source {
            name: name.into(),
            before: of_source().map(|((residual, _), _)| error(residual.at_zero)).collect(),
            left_out: of_source().map(|((_, [left_out, _]), _)| *left_out).collect(),
            in_sample: of_source().map(|((_, [_, in_sample]), _)| *in_sample).collect(),
        }
    };
    let sources: Vec<Source> = names.iter().map(|name| of(name)).collect();
    // Measured over forecast: 1 / (1 + error).
    let left_out: Vec<f64> = after.iter().map(|[left_out, _]| 1.0 / (1.0 + left_out)).collect();
    calibration.sources = errors_by_source(&sources);
    calibration.band = Some(Band { low: quantile(&left_out, 0.1), high: quantile(&left_out, 0.9) });
    Fit { calibration, unknowns: unknowns.len() }
}

/// The unknowns that some run has, and each run's residual, ln forecast − ln measured, with its slopes in the factors'
/// logarithms.
fn linearised(cases: &[Case]) -> (Vec<Unknown>, Vec<Residual>) {
    let owners: Vec<(&Parameter, Vec<Option<String>>)> = Parameter::all()
        .iter()
        .map(|parameter| {
            let owner = |case: &Case| parameter.owner(&case.plan.cluster, &case.plan.stack);
            (parameter, cases.iter().map(owner).collect())
        })
        .collect();
    let of_all = owners.iter().flat_map(|(parameter, owners)| {
        owners.iter().flatten().map(|owner| (parameter.name.clone(), owner.clone()))
    });
    let unknowns: Vec<Unknown> = of_all.collect::<BTreeSet<_>>().into_iter().collect();
    let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
    cases.iter().for_each(|case| *sizes.entry(&case.source).or_default() += 1.0);
    let residual = |(index, case): (usize, &Case)| {
        let at_zero = case.log_error(&Calibration::default()).unwrap_or(0.0);
        let slope = |(parameter, owners): &(&Parameter, Vec<Option<String>>)| {
            let of = owners[index].clone()?;
            let factor = probe(&parameter.name);
            let unknown = (parameter.name.clone(), of.clone());
            let at = unknowns.binary_search(&unknown).ok()?;
            let factors = vec![Factor { parameter: unknown.0, of, factor }];
            let changed = case.log_error(&Calibration { factors, ..Calibration::default() })?;
            Some((at, (changed - at_zero) / factor.ln()))
        };
        let slopes = owners.iter().filter_map(slope).collect();
        Residual { at_zero, slopes, weight: sizes[case.source.as_str()].powf(WEIGHT_OF_SOURCE - 1.0) }
    };
    let residuals = cases.par_iter().enumerate().map(residual).collect();
    (unknowns, residuals)
}

/// Up or, if the factor cannot grow, down.
fn probe(parameter: &str) -> f64 {
    if range(parameter).1 < PROBE.ln() { 1.0 / PROBE } else { PROBE }
}

fn range(parameter: &str) -> (f64, f64) {
    let known = Parameter::all().iter().find(|known| known.name == parameter);
    known.map_or((0.0, 0.0), |known| (known.low.max(LEAST).ln(), known.high.ln()))
}

fn calibration(unknowns: &[Unknown], logarithms: &[f64], source: &str) -> Calibration {
    let factor = |((parameter, of), logarithm): (&Unknown, &f64)| Factor {
        parameter: parameter.clone(),
        of: of.clone(),
        factor: (1000.0 * logarithm.exp()).round() / 1000.0,
    };
    let factors = unknowns.iter().zip(logarithms).map(factor).filter(|factor| factor.factor != 1.0).collect();
    Calibration { source: source.into(), factors, ..Calibration::default() }
}
