//! A fit as a page: the factors, and errors of each source before, unseen and seen.

use super::table::{Column, table};
use super::words::heading;
use trainwright_evidence::training::statistics::{mean, median, quantile};
use trainwright_spec::calibration::{Calibration, Figures, Parameter, SourceErrors};

/// A calibration and how free it was.
pub struct Fit {
    /// The calibration.
    pub calibration: Calibration,
    /// Factors that were free.
    pub unknowns: usize,
}

/// Errors of a source's runs: forecast over measured, less one.
pub struct Source {
    /// Its name.
    pub name: String,
    /// With the catalog as it is.
    pub before: Vec<f64>,
    /// With factors from the other sources.
    pub left_out: Vec<f64>,
    /// With factors from all.
    pub in_sample: Vec<f64>,
}

/// The figures of each source, and of all.
pub fn sources(sources: &[Source]) -> Vec<SourceErrors> {
    let all =
        |of: fn(&Source) -> &Vec<f64>| figures(&sources.iter().flat_map(of).copied().collect::<Vec<f64>>());
    let every = SourceErrors {
        name: "all".into(),
        rows: sources.iter().map(|source| source.before.len()).sum(),
        catalog: all(|source| &source.before),
        left_out: all(|source| &source.left_out),
        in_sample: all(|source| &source.in_sample),
    };
    let own = sources.iter().map(|source| SourceErrors {
        name: source.name.clone(),
        rows: source.before.len(),
        catalog: figures(&source.before),
        left_out: figures(&source.left_out),
        in_sample: figures(&source.in_sample),
    });
    own.chain([every]).collect()
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

/// The page.
pub fn page(fit: &Fit) -> String {
    let mut page = format!("{}, {} free factors\n", fit.calibration.source, fit.unknowns);
    if let Some(band) = fit.calibration.band {
        page.push_str(&format!(
            "four of five steps took {:.2} to {:.2} times the forecast made without their source\n",
            band.low, band.high
        ));
    }
    page.push_str(&heading("Factors"));
    let factors = fit.calibration.factors.iter().map(|factor| {
        let known = Parameter::from_name(&factor.parameter).ok();
        let range =
            known.as_ref().map_or_else(String::new, |known| format!("{} to {}", known.low, known.high));
        vec![factor.parameter.clone(), factor.of.clone(), format!("{:.3}", factor.factor), range]
    });
    let columns =
        [Column::Left("parameter"), Column::Left("of"), Column::Right("factor"), Column::Left("range")];
    page.push_str(&table(&columns, factors.collect()));
    page.push_str(&heading(
        "Errors of step times in %: median, mean and 90th percentile of their sizes; mean with sign",
    ));
    let columns = [
        Column::Left("source"),
        Column::Right("n"),
        Column::Right("catalog"),
        Column::Right("left out"),
        Column::Right("in sample"),
    ];
    let cell = |Figures { median, mean, signed, p90 }: &Figures| {
        format!("{median:5.1} {mean:5.1} {p90:5.1} {signed:+6.1}")
    };
    let rows = fit.calibration.sources.iter().map(|source| {
        let figures = [&source.catalog, &source.left_out, &source.in_sample].map(cell);
        [source.name.clone(), source.rows.to_string()].into_iter().chain(figures).collect()
    });
    page.push_str(&table(&columns, rows.collect()));
    page
}
