//! Trainings in numbers.

use super::json::print;
use super::table::Table;
use super::words;
use crate::inputs::metrics::LoggedRun;
use serde_json::json;

/// What a training came to.
struct Summary<'a> {
    name: &'a str,
    first: usize,
    last: usize,
    loss: [f64; 2],
    /// The lowest loss of held-out tokens, and its step.
    validation: Option<(f64, usize)>,
    tokens_per_second: Option<f64>,
}

/// A row for each run.
pub fn page(runs: &[LoggedRun]) -> String {
    let summaries: Vec<Summary> = runs.iter().map(summary).collect();
    let validation =
        |summary: &Summary| summary.validation.map(|(loss, step)| format!("{loss:.4} at step {step}"));
    let rate = |summary: &Summary| summary.tokens_per_second.map(|rate| words::grouped(rate.round()));
    Table::of(&summaries)
        .left("run", |summary| summary.name)
        .right("steps", |summary| format!("{}-{}", summary.first, summary.last))
        .right("first loss", |summary| format!("{:.4}", summary.loss[0]))
        .right("last loss", |summary| format!("{:.4}", summary.loss[1]))
        .right("lowest validation loss", |summary| validation(summary).unwrap_or_else(words::dash))
        .right("median tokens/s", |summary| rate(summary).unwrap_or_else(words::dash))
        .text()
}

/// The same numbers.
pub fn json(runs: &[LoggedRun]) -> String {
    let all = runs.iter().map(summary).map(|summary| {
        json!({
            "run": summary.name,
            "first_step": summary.first,
            "last_step": summary.last,
            "first_loss": summary.loss[0],
            "last_loss": summary.loss[1],
            "lowest_validation_loss": summary.validation.map(|(loss, _)| loss),
            "lowest_validation_step": summary.validation.map(|(_, step)| step),
            "median_tokens_per_second": summary.tokens_per_second,
        })
    });
    print(&json!({ "runs": all.collect::<Vec<_>>() }))
}

fn summary(run: &LoggedRun) -> Summary<'_> {
    let steps = &run.steps;
    let (first, last) = (&steps[0], &steps[steps.len() - 1]);
    let validations = steps.iter().filter_map(|step| Some((step.validation_loss?, step.step)));
    let mut rates: Vec<f64> = steps.iter().filter_map(|step| step.tokens_per_second).collect();
    rates.sort_by(f64::total_cmp);
    Summary {
        name: &run.name,
        first: first.step,
        last: last.step,
        loss: [first.loss, last.loss],
        validation: validations.min_by(|one, other| one.0.total_cmp(&other.0)),
        tokens_per_second: rates.get(rates.len() / 2).copied(),
    }
}
