//! Errors of forecasts of serving runs, the ranges that follow from them, and how many measured runs these hold.

use super::figures::FIGURES;
use super::forecast::ServingForecast;
use super::table::ServingTable;
use crate::kernels::NoCase;
use crate::statistics::{mean, median, quantile};
use std::collections::{BTreeMap, BTreeSet};
use trainwright_spec::serving::{ServingRange, ServingRanges};
use trainwright_spec::units::Seconds;

/// Measured runs from which on an engine has a range of its own.
const FEW: usize = 20;

/// Fewer than `FEW` measured runs give a range that holds at least these ratios: what few have in common may be theirs alone.
const LEAST: [f64; 2] = [2.0 / 3.0, 1.5];

/// A measured figure and its forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Residual {
    /// The column of the measurement.
    pub column: &'static str,
    /// Whose range it has.
    pub range: &'static str,
    /// The engine that forecast it.
    pub engine: String,
    /// The source of the row.
    pub source: String,
    /// Measured over forecast.
    pub ratio: f64,
    /// Measured over the null model's forecast; `None` if it has none.
    pub null: Option<f64>,
}

/// Errors of a figure: |forecast / measured − 1|.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingScore {
    /// The source of the rows, or `all`.
    pub source: String,
    /// The column of the measurement.
    pub column: &'static str,
    /// Rows.
    pub rows: usize,
    /// Median.
    pub median: f64,
    /// Mean.
    pub mean: f64,
    /// Nine tenths are below.
    pub p90: f64,
    /// Median of forecast / measured − 1.
    pub bias: f64,
    /// Median error of the null model on the rows that it forecasts; `None` if there are none.
    pub null: Option<f64>,
    /// The part of the rows whose measurement is in the catalog's range.
    pub held: f64,
    /// The same with ranges from the other sources.
    pub held_left_out: f64,
}

/// The measured figures of a table's rows of the given qualities, with their forecasts.
pub fn residuals(
    table: &ServingTable,
    forecasts: &[Result<ServingForecast, NoCase>],
    qualities: &str,
) -> Vec<Residual> {
    let mut residuals = Vec::new();
    for (row, forecast) in forecasts.iter().enumerate() {
        let quality = table.text(row, "quality");
        let Ok(forecast) = forecast else { continue };
        if !quality.is_empty() && !qualities.contains(quality) {
            continue;
        }
        for figure in &FIGURES {
            let measured: f64 = table.text(row, figure.column).parse().unwrap_or(0.0);
            let expected = (figure.of)(forecast);
            if measured > 0.0 && expected > 0.0 {
                residuals.push(Residual {
                    column: figure.column,
                    range: figure.range,
                    engine: forecast.engine.clone(),
                    source: table.text(row, "source").to_string(),
                    ratio: measured / expected,
                    null: null(figure.column, forecast).map(|expected| measured / (1e3 * expected.get())),
                });
            }
        }
    }
    residuals
}

/// The null model's forecast of a figure.
fn null(column: &str, forecast: &ServingForecast) -> Option<Seconds> {
    match column {
        "ttft_ms" => forecast.null.ttft,
        "tpot_ms" => forecast.null.tpot,
        _ => None,
    }
}

/// The ranges that hold eight tenths of the residuals, for each figure and engine with enough of them, and for all.
pub fn ranges(residuals: &[&Residual], source: &str) -> ServingRanges {
    let mut groups: BTreeMap<(&str, &str), Vec<&Residual>> = BTreeMap::new();
    for residual in residuals {
        groups.entry((residual.range, &residual.engine)).or_default().push(residual);
        groups.entry((residual.range, "any")).or_default().push(residual);
    }
    let enough = groups.into_iter().filter(|((_, engine), group)| *engine == "any" || group.len() >= FEW);
    let ranges = enough.map(|((figure, engine), group)| {
        let ratios: Vec<f64> = group.iter().map(|residual| residual.ratio).collect();
        let sources: BTreeSet<&str> = group.iter().map(|residual| residual.source.as_str()).collect();
        let rounded = |ratio: f64| (ratio * 1e4).round() / 1e4;
        let [low, high] = [quantile(&ratios, 0.1), quantile(&ratios, 0.9)];
        let [low, high] =
            if ratios.len() < FEW { [low.min(LEAST[0]), high.max(LEAST[1])] } else { [low, high] };
        ServingRange {
            figure: figure.into(),
            engine: engine.into(),
            rows: group.len(),
            sources: sources.len(),
            low: rounded(low),
            high: rounded(high),
        }
    });
    ServingRanges { source: source.into(), ranges: ranges.collect() }
}

/// The errors by source and figure, and those of all sources; `catalog` has the ranges.
pub fn scores(residuals: &[Residual], catalog: &ServingRanges) -> Vec<ServingScore> {
    let sources: BTreeSet<&str> = residuals.iter().map(|residual| residual.source.as_str()).collect();
    let without: BTreeMap<&str, ServingRanges> = sources
        .iter()
        .map(|source| {
            let others: Vec<&Residual> =
                residuals.iter().filter(|residual| residual.source != *source).collect();
            (*source, ranges(&others, ""))
        })
        .collect();
    let mut groups: BTreeMap<(&str, &'static str), Vec<&Residual>> = BTreeMap::new();
    for residual in residuals {
        groups.entry((&residual.source, residual.column)).or_default().push(residual);
        groups.entry(("all", residual.column)).or_default().push(residual);
    }
    let score = |((source, column), group): ((&str, &'static str), Vec<&Residual>)| {
        let of =
            |error: fn(f64) -> f64| group.iter().map(|residual| error(residual.ratio)).collect::<Vec<f64>>();
        let errors = of(|ratio| (1.0 / ratio - 1.0).abs());
        let null = group.iter().filter_map(|residual| Some((1.0 / residual.null? - 1.0).abs()));
        let null: Vec<f64> = null.collect();
        let part = |holds: &dyn Fn(&Residual) -> bool| {
            group.iter().filter(|residual| holds(residual)).count() as f64 / group.len() as f64
        };
        let holds = |ranges: &ServingRanges, residual: &Residual| {
            let range = ranges.of(residual.range, &residual.engine);
            range.is_some_and(|range| (range.low..=range.high).contains(&residual.ratio))
        };
        ServingScore {
            source: source.into(),
            column,
            rows: group.len(),
            median: median(&errors),
            mean: mean(&errors),
            p90: quantile(&errors, 0.9),
            null: (!null.is_empty()).then(|| median(&null)),
            bias: median(&of(|ratio| 1.0 / ratio - 1.0)),
            held: part(&|residual| holds(catalog, residual)),
            held_left_out: part(&|residual| holds(&without[residual.source.as_str()], residual)),
        }
    };
    groups.into_iter().map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residual(engine: &str, source: &str, ratio: f64) -> Residual {
        Residual {
            column: "tpot_ms",
            range: "tpot",
            engine: engine.into(),
            source: source.into(),
            ratio,
            null: None,
        }
    }

    #[test]
    fn ranges_hold_eight_tenths_and_sources_left_out_are_judged_by_others() {
        // Ratios of one source are 0.901 to 1.1, those of another are twice as large.
        let first = (1..=200).map(|index| residual("a", "first", 0.9 + index as f64 / 1000.0));
        let second = (1..=100).map(|index| residual("b", "second", 1.8 + index as f64 / 500.0));
        let all: Vec<Residual> = first.chain(second).collect();
        let ranges = ranges(&all.iter().collect::<Vec<_>>(), "these");
        let of_a = ranges.of("tpot", "a").unwrap();
        assert!((of_a.low - 0.92).abs() < 0.002 && (of_a.high - 1.08).abs() < 0.002, "{of_a:?}");
        assert_eq!((of_a.rows, of_a.sources, ranges.of("tpot", "any").unwrap().sources), (200, 1, 2));
        let few: Vec<&Residual> = all[..5].iter().collect();
        let of_few = super::ranges(&few, "few");
        let of_few = of_few.of("tpot", "a").unwrap();
        assert_eq!((of_few.engine.as_str(), of_few.low, of_few.high), ("any", 0.6667, 1.5));
        let scores = scores(&all, &ranges);
        let score = |source: &str| scores.iter().find(|score| score.source == source).unwrap();
        assert!((score("first").held - 0.8).abs() < 0.02, "{:?}", score("first"));
        assert_eq!(score("first").held_left_out, 0.0);
        assert_eq!(score("all").rows, 300);
        assert!((score("second").bias + 0.474).abs() < 0.001, "{:?}", score("second"));
    }
}
