//! A calibration fitted to measured runs, and its errors on sources that were left out.

pub mod evidence;
mod hierarchy;
mod pooled;

use crate::runs::Run;
use crate::statistics::{mean, median, quantile};
use hierarchy::{Row, Solution, solve};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::step_time_for_ranking;
use trainwright_spec::calibration::{Band, Calibration, Factor, Figures, Parameter, SourceErrors};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// A calibration, and what was found on the way to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The calibration.
    pub calibration: Calibration,
    /// Each run that counted, forecast by a fit of the other sources; in the order of the cases.
    pub left_out: Vec<LeftOut>,
    /// The calibration without each source, by its name.
    pub without: BTreeMap<String, Calibration>,
    /// Factors that ended at the end of their physical range.
    pub remarks: Vec<String>,
}

/// A run forecast with factors from the other sources.
#[derive(Debug, Clone, PartialEq)]
pub struct LeftOut {
    /// Name of its source.
    pub source: String,
    /// Quality of its row: `A`, `B`, `C` or blank.
    pub quality: String,
    /// ln measured − ln forecast.
    pub residual: f64,
    /// Index in the cases that were given.
    pub case: usize,
}

impl LeftOut {
    /// Forecast over measured, less one.
    pub fn error(&self) -> f64 {
        libm::exp(-self.residual) - 1.0
    }
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

/// A smaller slope has no effect: a factor changed by a tenth moves the step by less than 0.01 %.
const NEGLIGIBLE: f64 = 1e-3;

/// A measured run with its plan.
pub struct Case {
    source: String,
    quality: String,
    plan: Plan,
    measured: Seconds,
}

impl Case {
    /// `None` if its step time was not measured, or it has no plan.
    pub fn of(run: &Run) -> Option<Self> {
        let measured = Seconds::new(run.step_seconds()?);
        let quality = run.quality.clone();
        Some(Self { source: run.family(), quality, plan: run.plan().ok()?, measured })
    }

    /// ln measured − ln forecast; `None` if there is no forecast.
    pub(crate) fn residual(&self, calibration: &Calibration) -> Option<f64> {
        let mut plan = self.plan.clone();
        calibration.apply(&mut plan.cluster, &mut plan.stack);
        let step = step_time_for_ranking(&plan, &ClusterCosts::new(&plan.cluster)).ok()?;
        Some(libm::log(self.measured / Seconds::from(step)))
    }

    /// The run, linear in the logarithms of the factors on these parameters, around the given factors: each is changed
    /// alone. `None` if there is no forecast.
    fn linearised(&self, parameters: &[&'static Parameter], around: &[Factor]) -> Option<Row> {
        let given = Calibration { factors: around.to_vec(), ..Calibration::default() };
        let residual = self.residual(&given)?;
        let term = |parameter: &'static Parameter| {
            let of = parameter.owner(&self.plan.cluster, &self.plan.stack)?;
            let (here, step) = (given.factor(&parameter.name, &of).unwrap_or(1.0), probe(parameter));
            let changed = Factor { parameter: parameter.name.clone(), of: of.clone(), factor: here * step };
            let same = |factor: &&Factor| factor.parameter != changed.parameter || factor.of != of;
            let factors = around.iter().filter(same).chain([&changed]).cloned().collect();
            let slope = (residual - self.residual(&Calibration { factors, ..Calibration::default() })?)
                / libm::log(step);
            Some((slope * libm::log(here), (parameter, of, slope)))
        };
        let (there, slopes): (Vec<f64>, Vec<_>) = parameters.iter().copied().filter_map(term).unzip();
        Some(Row { source: self.source.clone(), value: residual + there.iter().sum::<f64>(), slopes })
    }
}

/// The rows of the cases that have a forecast, with the cases' indices, around the catalog.
fn linearised(cases: &[Case]) -> Vec<(usize, Row)> {
    let all: Vec<&'static Parameter> = Parameter::all().iter().collect();
    let rows: Vec<Option<Row>> = cases.par_iter().map(|case| case.linearised(&all, &[])).collect();
    rows.into_iter().enumerate().filter_map(|(case, row)| Some((case, row?))).collect()
}

/// Linearised around given factors, for the parameters that had an effect.
fn linearised_again(cases: &[Case], rows: &[(usize, Row)], around: &[Factor]) -> Vec<(usize, Row)> {
    let again = |(case, row): &(usize, Row)| {
        let effective = row.slopes.iter().filter(|(.., slope)| slope.abs() >= NEGLIGIBLE);
        let parameters: Vec<&'static Parameter> = effective.map(|(parameter, ..)| *parameter).collect();
        (*case, cases[*case].linearised(&parameters, around).unwrap_or_else(|| row.clone()))
    };
    rows.par_iter().map(again).collect()
}

/// Up or, if the factor cannot grow, down.
fn probe(parameter: &Parameter) -> f64 {
    if parameter.high < PROBE { 1.0 / PROBE } else { PROBE }
}

/// Fits the factors of the catalog to measured step times; `source` describes them.
pub fn fit(cases: &[Case], source: String) -> Fit {
    let catalog = linearised(cases);
    let first = solve(&catalog.iter().map(|(_, row)| row.clone()).collect::<Vec<_>>());
    let rows = linearised_again(cases, &catalog, &first.factors);
    let names: BTreeSet<&str> = rows.iter().map(|(_, row)| row.source.as_str()).collect();
    let without = |left_out: Option<&str>| {
        let counted = rows.iter().map(|(_, row)| row).filter(|row| Some(row.source.as_str()) != left_out);
        solve(&counted.cloned().collect::<Vec<_>>())
    };
    let solutions: Vec<Option<&str>> = names.iter().map(|name| Some(*name)).chain([None]).collect();
    let solutions: Vec<(Option<&str>, Solution)> =
        solutions.into_par_iter().map(|left_out| (left_out, without(left_out))).collect();
    let calibrations: BTreeMap<Option<&str>, Calibration> = solutions
        .iter()
        .map(|(left_out, solution)| {
            let factors = solution.factors.clone();
            (*left_out, Calibration { source: source.clone(), factors, ..Calibration::default() })
        })
        .collect();
    // Residuals with factors of the others, and of all: simulated, not from the linear model.
    let after: Vec<[f64; 2]> = rows
        .par_iter()
        .map(|(case, row)| {
            let residual =
                |calibration: &Calibration| cases[*case].residual(calibration).unwrap_or(row.value);
            [Some(row.source.as_str()), None].map(|left_out| residual(&calibrations[&left_out]))
        })
        .collect();
    let left_out: Vec<LeftOut> = rows
        .iter()
        .zip(&after)
        .map(|((case, row), [residual, _])| LeftOut {
            source: row.source.clone(),
            quality: cases[*case].quality.clone(),
            residual: *residual,
            case: *case,
        })
        .collect();
    let error = |residual: f64| libm::exp(-residual) - 1.0;
    let before = |name: &str| {
        let of_source = catalog.iter().filter(|(_, row)| row.source == name);
        of_source.map(|(_, row)| error(row.value)).collect()
    };
    let of = |name: &str| {
        let of_source = || rows.iter().zip(&after).filter(|((_, row), _)| row.source == name);
        Source {
            name: name.into(),
            before: before(name),
            left_out: of_source().map(|(_, [left_out, _])| error(*left_out)).collect(),
            in_sample: of_source().map(|(_, [_, in_sample])| error(*in_sample)).collect(),
        }
    };
    let sources: Vec<Source> = names.iter().map(|name| of(name)).collect();
    let ratios: Vec<f64> = left_out.iter().map(|run| libm::exp(run.residual)).collect();
    let band = Band { low: quantile(&ratios, 0.1), high: quantile(&ratios, 0.9) };
    let calibration =
        Calibration { sources: errors_by_source(&sources), band: Some(band), ..calibrations[&None].clone() };
    let without = calibrations.into_iter().filter_map(|(name, without)| Some((name?.to_string(), without)));
    let without = without.collect();
    let remarks = solutions.into_iter().find(|(left_out, _)| left_out.is_none());
    Fit {
        calibration,
        left_out,
        without,
        remarks: remarks.map_or(Vec::new(), |(_, solution)| solution.remarks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::Table;
    use std::path::Path;

    /// A few runs each of four published sources.
    fn cases() -> Vec<Case> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../published/training.csv");
        let table = Table::read(std::fs::File::open(path).unwrap()).unwrap();
        let runs: Vec<Run> = table.runs().flatten().filter(|run| run.quality == "A").collect();
        let of = |source: &str| {
            let of_source: Vec<&Run> = runs.iter().filter(|run| run.family() == source).collect();
            of_source.into_iter().step_by(4).take(4).filter_map(Case::of).collect::<Vec<_>>()
        };
        ["dgxc", "mosaic", "zerobubble", "vtrain-multi"].iter().flat_map(|source| of(source)).collect()
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| fit(&cases(), "a".into()))
        };
        let (one, four) = (with(1), with(4));
        assert_eq!(one.calibration.to_toml(), four.calibration.to_toml());
        assert_eq!(one, four);
        assert!(one.left_out.iter().any(|run| run.residual != 0.0));
    }

    #[test]
    fn a_source_left_out_has_no_say_in_its_forecast() {
        let all = fit(&cases(), "all".into());
        assert_eq!(all.left_out.len(), cases().len());
        // A source that took 1.2 times as long: the forecasts of the others do not follow. They depend on the source only
        // through the factors around which slopes are measured.
        let slower = |case: Case| Case { measured: Seconds::new(1.2 * case.measured.get()), ..case };
        let moved = cases().into_iter().map(|case| if case.source == "mosaic" { slower(case) } else { case });
        let moved = fit(&moved.collect::<Vec<_>>(), "moved".into());
        for (one, other) in all.left_out.iter().zip(&moved.left_out).filter(|(one, _)| one.source == "mosaic")
        {
            let followed = libm::log(1.2) - (other.residual - one.residual);
            assert!(followed.abs() < 0.01, "{one:?} {other:?}");
            assert_eq!(one.quality, "A");
            assert_eq!(cases()[one.case].source, "mosaic");
        }
        let mosaic = all.calibration.sources.iter().find(|source| source.name == "mosaic").unwrap();
        assert_eq!(mosaic.rows, 4);
        assert_ne!(mosaic.left_out, mosaic.in_sample);
    }
}
