//! Errors of forecasts of serving runs, by source and figure, and the ranges that follow from them.

use super::counts::Counts;
use super::table::Table;
use serde_json::{Value, json};
use trainwright_evidence::serving::score::ServingScore;
use trainwright_spec::serving::{ServingRange, ServingRanges};

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
         other sources only. The null model reads weights and cache at half of the memory's bandwidth for each token, and \
         computes prompts at 0.3 of the peak.\n\n{}\n{}",
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
        .right("null median %", move |score| score.null.map_or(String::new(), percent))
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
            "null_median": score.null,
            "in_range": score.held,
            "in_range_left_out": score.held_left_out,
        })
    };
    counts.json(scores.iter().map(score).collect::<Vec<_>>())
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
