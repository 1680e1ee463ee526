//! A fit as a page: the factors, and errors of each source before, unseen and seen.

use super::json::print;
use super::table::Table;
use super::words::heading;
use serde_json::json;
use std::collections::BTreeSet;
use trainwright_evidence::fit::{Fit, LeftOut};
use trainwright_evidence::statistics::{mean, median};
use trainwright_spec::calibration::{Calibration, Figures, Parameter, SourceErrors};

/// The page.
pub fn page(fit: &Fit) -> String {
    let mut page = format!("{}, {} factors\n", fit.calibration.source, fit.calibration.factors.len());
    if let Some(band) = fit.calibration.band {
        page.push_str(&format!(
            "four of five steps took {:.2} to {:.2} times the forecast made without their source\n",
            band.low, band.high
        ));
    }
    page.push_str(&by_source(&fit.calibration));
    page.push_str(&by_quality(&fit.left_out));
    page.push_str(&heading("Factors"));
    let range = |parameter: &str| match Parameter::from_name(parameter) {
        Ok(known) => format!("{} to {}", known.low, known.high),
        Err(_) => String::new(),
    };
    let factors = Table::of(&fit.calibration.factors)
        .left("parameter", |factor| &factor.parameter)
        .left("of", |factor| &factor.of)
        .right("factor", |factor| format!("{:.3}", factor.factor))
        .left("range", |factor| range(&factor.parameter));
    page.push_str(&factors.text());
    fit.remarks.iter().for_each(|remark| page.push_str(&format!("{remark}\n")));
    page.push_str(&heading(
        "Errors of step times in %: median, mean and 90th percentile of their sizes; mean with sign",
    ));
    let cell = |Figures { median, mean, signed, p90 }: &Figures| {
        format!("{median:5.1} {mean:5.1} {p90:5.1} {signed:+6.1}")
    };
    let sources = Table::of(&fit.calibration.sources)
        .left("source", |source| &source.name)
        .right("n", |source| source.rows)
        .right("catalog", |source| cell(&source.catalog))
        .right("left out", |source| cell(&source.left_out))
        .right("in sample", |source| cell(&source.in_sample));
    page + &sources.text()
}

/// The same as data: the calibration without its residuals, and what the fit says about it.
pub fn json(fit: &Fit) -> String {
    let Calibration { source, band, factors, sources, .. } = &fit.calibration;
    print(&json!({
        "source": source,
        "band": band,
        "factors": factors,
        "sources": sources,
        "remarks": fit.remarks,
    }))
}

/// Two lines: the mean of the sources' medians, and how many sources the fit of the others does not harm.
fn by_source(calibration: &Calibration) -> String {
    let sources: Vec<&SourceErrors> =
        calibration.sources.iter().filter(|source| source.name != "all").collect();
    let of = |figures: fn(&SourceErrors) -> Figures| {
        mean(&sources.iter().map(|source| figures(source).median).collect::<Vec<_>>())
    };
    let no_worse = sources.iter().filter(|source| source.left_out.median <= source.catalog.median).count();
    format!(
        "mean of the sources' median errors: catalog {:.1} %, left out {:.1} %, in sample {:.1} %\n\
         {no_worse} of {} sources have no larger median error when left out than with the catalog\n",
        of(|source| source.catalog),
        of(|source| source.left_out),
        of(|source| source.in_sample),
        sources.len()
    )
}

/// A line for each quality of rows.
fn by_quality(runs: &[LeftOut]) -> String {
    let qualities: BTreeSet<&str> = runs.iter().map(|run| run.quality.as_str()).collect();
    let line = |quality: &str| {
        let runs = runs.iter().filter(|run| run.quality == quality);
        let sizes: Vec<f64> = runs.map(|run| 100.0 * run.error().abs()).collect();
        let (count, median, mean) = (sizes.len(), median(&sizes), mean(&sizes));
        let quality = if quality.is_empty() { "no" } else { quality };
        format!("{count} runs of {quality} quality, left out: median error {median:.1} %, mean {mean:.1} %\n")
    };
    qualities.into_iter().map(line).collect()
}
