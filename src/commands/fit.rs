//! `fit`: a calibration from measured runs, and how it does on sources that it has not seen.

use super::predict::forecasts;
use crate::arguments::FitArguments;
use crate::error::{CliError, Outcome};
use crate::render::fit::{self as page, Fit, Source};
use crate::{inputs, output};
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::calibration::{Band, Calibration, Factor, Parameter};
use trainwright_traces::training::robust::{self, Residual};
use trainwright_traces::training::statistics::quantile;
use trainwright_traces::training::{NoPlan, Prediction, Run};

/// By how much a factor is changed to see what a step time makes of it.
const PROBE: f64 = 1.1;

/// Factors that may be 0 have this least one for their logarithm.
const LEAST: f64 = 0.05;

/// How much the rows of a source count together: as much as this power of their number.
const WEIGHT_OF_SOURCE: f64 = 0.5;

/// Runs the command.
///
/// # Errors
/// A table that cannot be read or has no measured run, a file that cannot be written.
pub fn run(arguments: &FitArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], false)?;
    let table = inputs::table(&arguments.measurements)?;
    let qualities: BTreeSet<&str> = arguments.quality.split(',').map(str::trim).collect();
    let usable = |run: &Result<Run, NoPlan>| {
        let run = run.as_ref().ok()?;
        let wanted = run.quality.is_empty() || qualities.contains(run.quality.as_str());
        (wanted && run.step_seconds().is_some() && run.plan().is_ok()).then(|| Ok(run.clone()))
    };
    let runs: Vec<Result<Run, NoPlan>> = table.runs().filter_map(|run| usable(&run)).collect();
    if runs.is_empty() {
        return Err(CliError::Argument {
            argument: "measurements".into(),
            value: arguments.measurements.clone(),
            allowed: format!("it has no run of quality {} with a step time and a plan", arguments.quality),
        });
    }
    let fit = fit(&runs, format!("fit of {} runs of {}", runs.len(), arguments.measurements));
    if let Some(path) = &arguments.out {
        output::write("--out", path, |out| out.write_all(fit.calibration.to_toml().as_bytes()))?;
    }
    if !alone {
        output::print(&page::page(&fit))?;
    }
    Ok(Outcome::Done)
}

/// Who owns a parameter: the unknowns of the fit.
type Unknown = (String, String);

fn fit(runs: &[Result<Run, NoPlan>], source: String) -> Fit {
    let (unknowns, residuals) = linearised(runs);
    let ranges: Vec<(f64, f64)> = unknowns.iter().map(|(parameter, _)| range(parameter)).collect();
    let families: Vec<String> = runs.iter().flatten().map(Run::family).collect();
    let solve = |left_out: Option<&str>| {
        let counted: Vec<Residual> = residuals
            .iter()
            .zip(&families)
            .filter(|(_, family)| Some(family.as_str()) != left_out)
            .map(|(residual, _)| residual.clone())
            .collect();
        calibration(&unknowns, &robust::fit(&counted, &ranges), &source)
    };
    let errors = |predictions: &[Result<Prediction, NoPlan>], wanted: &dyn Fn(usize) -> bool| -> Vec<f64> {
        let rows = runs.iter().zip(predictions).enumerate().filter(|(index, _)| wanted(*index));
        rows.filter_map(|(_, (run, prediction))| prediction.as_ref().ok()?.error(run.as_ref().ok()?))
            .collect()
    };
    let mut calibration = solve(None);
    let before = forecasts(runs, &Calibration::default());
    let after = forecasts(runs, &calibration);
    let names: BTreeSet<&String> = families.iter().collect();
    let sources: Vec<Source> = names
        .into_iter()
        .map(|name| {
            let own: Vec<Result<Run, NoPlan>> = runs
                .iter()
                .zip(&families)
                .filter(|(_, family)| *family == name)
                .map(|(run, _)| run.clone())
                .collect();
            let unseen = forecasts(&own, &solve(Some(name)));
            let unseen = own.iter().zip(&unseen);
            Source {
                name: name.clone(),
                before: errors(&before, &|index| families[index] == *name),
                left_out: unseen
                    .filter_map(|(run, prediction)| prediction.as_ref().ok()?.error(run.as_ref().ok()?))
                    .collect(),
                in_sample: errors(&after, &|index| families[index] == *name),
            }
        })
        .collect();
    // Measured over forecast: 1 / (1 + error).
    let left_out: Vec<f64> =
        sources.iter().flat_map(|source| &source.left_out).map(|error| 1.0 / (1.0 + error)).collect();
    calibration.sources = page::sources(&sources);
    calibration.band = Some(Band { low: quantile(&left_out, 0.1), high: quantile(&left_out, 0.9) });
    Fit { calibration, unknowns: unknowns.len() }
}

/// The unknowns that some run has, and each run's residual, ln forecast − ln measured, with its slopes in the factors'
/// logarithms.
fn linearised(runs: &[Result<Run, NoPlan>]) -> (Vec<Unknown>, Vec<Residual>) {
    let base = forecasts(runs, &Calibration::default());
    let owners: BTreeMap<&str, Vec<Option<String>>> = Parameter::all()
        .iter()
        .map(|parameter| {
            let owner = |run: &Result<Run, NoPlan>| parameter.owner(&run.as_ref().ok()?.plan().ok()?);
            (parameter.name.as_str(), runs.iter().map(owner).collect())
        })
        .collect();
    let unknowns: BTreeSet<Unknown> = owners
        .iter()
        .flat_map(|(parameter, owners)| {
            owners.iter().flatten().map(|owner| (parameter.to_string(), owner.clone()))
        })
        .collect();
    let unknowns: Vec<Unknown> = unknowns.into_iter().collect();
    let mut residuals: Vec<Residual> = runs
        .iter()
        .zip(&base)
        .map(|(run, prediction)| Residual {
            at_zero: log_error(run, prediction),
            slopes: Vec::new(),
            weight: 1.0,
        })
        .collect();
    for (parameter, owners) in &owners {
        // Each run has one owner of a parameter, so that one pass shows all slopes of it.
        let names: BTreeSet<&String> = owners.iter().flatten().collect();
        let factor = |of: &String| Factor {
            parameter: parameter.to_string(),
            of: of.clone(),
            factor: probe(parameter),
        };
        let probed =
            Calibration { factors: names.into_iter().map(factor).collect(), ..Calibration::default() };
        let predictions = forecasts(runs, &probed);
        for (index, owner) in owners.iter().enumerate() {
            let Some(owner) = owner else { continue };
            let unknown =
                unknowns.iter().position(|known| (known.0.as_str(), &known.1) == (parameter, owner));
            let changed = log_error(&runs[index], &predictions[index]) - residuals[index].at_zero;
            let slope = changed / probe(parameter).ln();
            residuals[index].slopes.extend(unknown.map(|unknown| (unknown, slope)));
        }
    }
    let mut sizes: BTreeMap<String, f64> = BTreeMap::new();
    runs.iter().flatten().for_each(|run| *sizes.entry(run.family()).or_default() += 1.0);
    for (residual, run) in residuals.iter_mut().zip(runs.iter().flatten()) {
        residual.weight = sizes[&run.family()].powf(WEIGHT_OF_SOURCE - 1.0);
    }
    (unknowns, residuals)
}

/// Up or, for a part that could not grow, down.
fn probe(parameter: &str) -> f64 {
    if range(parameter).1 < PROBE.ln() { 1.0 / PROBE } else { PROBE }
}

fn log_error(run: &Result<Run, NoPlan>, prediction: &Result<Prediction, NoPlan>) -> f64 {
    let error =
        run.as_ref().ok().zip(prediction.as_ref().ok()).and_then(|(run, prediction)| prediction.error(run));
    error.map_or(0.0, |error| (1.0 + error).ln())
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
