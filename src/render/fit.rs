//! A fit as a page: the factors, and errors of each source before, unseen and seen.

use super::table::Table;
use super::words::heading;
use trainwright_evidence::fit::Fit;
use trainwright_spec::calibration::{Figures, Parameter};

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
