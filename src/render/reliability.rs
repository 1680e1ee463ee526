//! The page on whether ranges mean what they say.

use super::scoreboard::Rows;
use super::table::Table;
use trainwright_evidence::reliability::{
    Coverage, Fitting, Of, Order, Regret, coverages, fitting, judged, orders, regret,
};

/// Runs that a slice needs.
const FEWEST: usize = 20;

/// Runs that a sweep needs.
const SWEEP: usize = 4;

/// Bounds of the probabilities of fitting.
const PROBABILITIES: [f64; 8] = [0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 1.0];

/// Bounds of the differences of two forecasts.
const DIFFERENCES: [f64; 7] = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, f64::INFINITY];

/// The page, in Markdown.
pub fn page(rows: Rows) -> String {
    let rows = judged(rows);
    let mut page = String::from(
        "# Reliability of the ranges\n\n\
         A range of 80 % should hold four of five measured values. The ranges of a run rest on the residuals of other\n\
         sources only; the factors of the forecasts have seen the runs of quality A. Made together with\n\
         [the scoreboard](page.md). Slices of fewer than 20 runs are left out.\n\n",
    );
    for (title, of) in [("Step time", Of::Time), ("Peak memory", Of::Memory)] {
        page.push_str(&format!("## {title}\n\n"));
        page.push_str(&table(&coverages(&rows, of, FEWEST)));
        page.push_str("\nUpper over lower: the median over runs, of the range of 80 %.\n\n");
    }
    page.push_str("## Probability of fitting\n\n");
    page.push_str("Runs by the forecast probability that they fit, and the fraction that fitted.\n\n");
    page.push_str(&probabilities(&fitting(&rows, &PROBABILITIES)));
    page.push_str("\n## Regret\n\n");
    page.push_str(
        "In a sweep, the measured time of the layout with the least forecast over the least measured time, less one:\n\
         what a choice by the forecast costs. Sweeps have at least 4 runs.\n\n",
    );
    let sweeps = [("all", regret(&rows, SWEEP, false)), ("one node", regret(&rows, SWEEP, true))];
    page.push_str(&regrets(&sweeps));
    page.push_str("\n## Order\n\n");
    page.push_str(
        "Pairs of runs of a sweep, by how far their forecasts differ, and the part of which the one with the shorter\n\
         forecast was faster. Every sweep weighs the same. Half is chance.\n\n",
    );
    page.push_str(&order_table(&orders(&rows, &DIFFERENCES)));
    page
}

fn table(coverages: &[Coverage]) -> String {
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    Table::of(coverages)
        .left("slice", |coverage| coverage.slice.clone())
        .right("runs", |coverage| coverage.runs.to_string())
        .right("inside of 50 %", move |coverage| percent(coverage.inside[0]))
        .right("inside of 80 %", move |coverage| percent(coverage.inside[1]))
        .right("inside of 90 %", move |coverage| percent(coverage.inside[2]))
        .right("upper over lower", |coverage| format!("{:.2}", coverage.width))
        .markdown()
}

fn probabilities(fitting: &[Fitting]) -> String {
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    Table::of(fitting)
        .left("forecast probability", move |fit| {
            format!("{} to {}", percent(fit.between.0), percent(fit.between.1))
        })
        .right("runs", |fit| fit.runs.to_string())
        .right("mean probability", |fit| format!("{:.1} %", 100.0 * fit.expected))
        .right("fitted", |fit| format!("{:.1} %", 100.0 * fit.fitted))
        .markdown()
}

fn order_table(orders: &[Order]) -> String {
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    Table::of(orders)
        .left("forecasts differ by", move |order| match order.between {
            (low, high) if high.is_infinite() => format!("{} and more", percent(low)),
            (low, high) => format!("{} to {}", percent(low), percent(high)),
        })
        .right("pairs", |order| order.pairs.to_string())
        .right("order right", move |order| percent(order.right))
        .markdown()
}

fn regrets(regrets: &[(&str, Option<Regret>)]) -> String {
    let known: Vec<(&str, &Regret)> =
        regrets.iter().filter_map(|(name, regret)| Some((*name, regret.as_ref()?))).collect();
    Table::of(&known)
        .left("sweeps", |(name, _)| name.to_string())
        .right("number", |(_, regret)| regret.sweeps.to_string())
        .right("mean", |(_, regret)| format!("{:.1} %", 100.0 * regret.mean))
        .right("median", |(_, regret)| format!("{:.1} %", 100.0 * regret.median))
        .markdown()
}
