//! Errors of forecasts of serving runs, by source and figure, and the ranges that follow from them.

use super::table::Table;
use serde_json::{Value, json};
use trainwright_evidence::kernels::NoCase;
use trainwright_evidence::serving::ServingForecast;
use trainwright_evidence::serving::score::ServingScore;
use trainwright_spec::serving::{ServingRange, ServingRanges};

/// Rows by what became of them.
#[derive(Debug, Default)]
pub struct Counts {
    forecast: usize,
    unsupported: usize,
    invalid: usize,
}

impl Counts {
    /// Of the rows of all tables.
    pub fn of<'a>(forecasts: impl Iterator<Item = &'a Result<ServingForecast, NoCase>>) -> Self {
        let mut counts = Self::default();
        for forecast in forecasts {
            match forecast {
                Ok(_) => counts.forecast += 1,
                Err(NoCase::Unsupported(_)) => counts.unsupported += 1,
                Err(NoCase::Invalid(_)) => counts.invalid += 1,
            }
        }
        counts
    }

    fn line(&self) -> String {
        let Self { forecast, unsupported, invalid } = self;
        let rows = forecast + unsupported + invalid;
        format!("{rows} rows: {forecast} forecast, {unsupported} unsupported, {invalid} invalid\n")
    }
}

/// The table for a terminal.
pub fn text(scores: &[ServingScore], counts: &Counts) -> String {
    match scores {
        [] => counts.line(),
        _ => format!("{}\n{}", counts.line(), table(scores).text()),
    }
}

/// The page of the scoreboard.
pub fn markdown(scores: &[ServingScore], counts: &Counts) -> String {
    format!(
        "# Serving runs\n\n\
         `trainwright predict --inference … --scoreboard` wrote this page. Errors are |forecast / measured − 1| in percent of \
         rows of quality A and B, bias is the median of forecast / measured − 1. \"In range\" is the part of the rows whose \
         measurement lies from the forecast's tenth to its ninth tenth, which should be 80 %; \"left out\" with ranges from the \
         other sources only.\n\n{}\n{}",
        counts.line(),
        table(scores).markdown()
    )
}

fn table(scores: &[ServingScore]) -> Table<'_, ServingScore> {
    let percent = |part: f64| format!("{:.1}", 100.0 * part);
    Table::of(scores)
        .left("source", |score| &score.source)
        .left("figure", |score| score.column)
        .right("rows", |score| score.rows)
        .right("median %", move |score| percent(score.median))
        .right("mean %", move |score| percent(score.mean))
        .right("p90 %", move |score| percent(score.p90))
        .right("bias %", move |score| percent(score.bias))
        .right("in range %", move |score| percent(score.held))
        .right("left out %", move |score| percent(score.held_left_out))
}

/// The errors as JSON.
pub fn as_json(scores: &[ServingScore], counts: &Counts) -> Value {
    let score = |score: &ServingScore| {
        json!({
            "source": score.source,
            "figure": score.column,
            "rows": score.rows,
            "median": score.median,
            "mean": score.mean,
            "p90": score.p90,
            "bias": score.bias,
            "in_range": score.held,
            "in_range_left_out": score.held_left_out,
        })
    };
    json!({
        "forecast": counts.forecast,
        "unsupported": counts.unsupported,
        "invalid": counts.invalid,
        "scores": scores.iter().map(score).collect::<Vec<_>>(),
    })
}

/// Fitted ranges for a terminal.
pub fn fitted(ranges: &ServingRanges) -> String {
    let percent = |ratio: f64| format!("{:+.0}", 100.0 * (ratio - 1.0));
    Table::of(&ranges.ranges)
        .left("figure", |range: &ServingRange| &range.figure)
        .left("engine", |range| &range.engine)
        .right("rows", |range| range.rows)
        .right("sources", |range| range.sources)
        .right("low %", move |range| percent(range.low))
        .right("high %", move |range| percent(range.high))
        .text()
}
