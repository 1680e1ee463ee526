//! A fit as a page: the factors, and errors of each source before, unseen and seen.

use super::table::{Column, table};
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
