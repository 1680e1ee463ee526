//! Answers as CSV, with the unit in every column's name.
//!
//! Columns are added, not renamed or removed. Numbers have six digits; unknown values are empty.

use crate::answer::Answer;
use crate::pareto::{Cost, front};

/// The columns after those of the axes.
const COLUMNS: [&str; 27] = [
    "gpus",
    "nodes",
    "model",
    "parameters",
    "sequence_tokens",
    "global_batch_sequences",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu_causal_attention",
    "peak_memory_gib",
    "tensor",
    "pipeline",
    "data",
    "virtual_stages",
    "micro_batch",
    "schedule",
    "usd_per_billion_tokens",
    "kwh_per_billion_tokens",
    "run_tokens",
    "run_days",
    "run_gpu_hours",
    "run_usd",
    "run_mwh",
    "pareto",
    "limited_by",
    "reason",
];

/// A row for each answer, below the names of the columns; `axes` are the names of the varied inputs.
pub fn csv(axes: &[String], answers: &[Answer]) -> String {
    let front = front(answers, Cost::of(answers));
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = axes.iter().map(String::as_str).map(distinct).chain(COLUMNS.map(str::to_string));
    let rows = answers.iter().zip(front).map(|(answer, on_front)| row(answer, on_front));
    let written = writer
        .write_record(header)
        .and_then(|()| rows.into_iter().try_for_each(|row| writer.write_record(row)));
    written.expect("memory takes rows of equal length");
    let bytes = writer.into_inner().expect("memory takes all that is written");
    String::from_utf8(bytes).expect("all that was written is text")
}

/// An axis may be called as a column: both are kept apart.
fn distinct(axis: &str) -> String {
    if COLUMNS.contains(&axis) { format!("varied_{axis}") } else { axis.into() }
}

fn row(answer: &Answer, on_front: bool) -> Vec<String> {
    let mut cells = answer.point.clone();
    let mut put = |cell: Option<String>| cells.push(cell.unwrap_or_default());
    let (scenario, planned) = (answer.scenario.as_ref(), answer.outcome.as_ref().ok());
    let of = |value: f64| Some(number(value));
    put(scenario.map(|scenario| scenario.cluster().gpus().to_string()));
    put(scenario.map(|scenario| scenario.cluster().nodes.to_string()));
    put(scenario.map(|scenario| scenario.model().name.clone()));
    put(scenario.map(|scenario| scenario.model().parameters().to_string()));
    put(scenario.map(|scenario| scenario.job().sequence.to_string()));
    put(scenario.map(|scenario| scenario.job().global_batch.to_string()));
    let forecast = planned.map(|planned| &planned.forecast);
    put(forecast.and_then(|forecast| of(forecast.step_time.get())));
    put(forecast.and_then(|forecast| of(forecast.tokens_per_s)));
    put(forecast.and_then(|forecast| of(forecast.tokens_per_s_per_gpu)));
    put(forecast.and_then(|forecast| of(forecast.mfu_causal_attention)));
    put(forecast.and_then(|forecast| of(forecast.peak_memory.as_gib())));
    let plan = planned.map(|planned| &planned.plan);
    put(plan.map(|plan| plan.mesh.tensor.to_string()));
    put(plan.map(|plan| plan.mesh.pipeline.to_string()));
    put(plan.map(|plan| plan.mesh.data.to_string()));
    put(plan.map(|plan| plan.virtual_stages.to_string()));
    put(plan.map(|plan| plan.micro_batch.to_string()));
    put(plan.map(|plan| plan.schedule.to_string()));
    let billion = answer.billion();
    put(billion.and_then(|run| of(run.cost?.get())));
    put(billion.and_then(|run| of(1e3 * run.energy?.as_mwh())));
    let tokens = scenario.and_then(|scenario| scenario.rates.tokens);
    let run = answer.whole_run();
    put(tokens.and_then(of));
    put(run.and_then(|run| of(run.time.as_days())));
    put(run.and_then(|run| of(run.gpu_hours)));
    put(run.and_then(|run| of(run.cost?.get())));
    put(run.and_then(|run| of(run.energy?.as_mwh())));
    put(planned.map(|_| if on_front { "yes" } else { "no" }.to_string()));
    put(planned.map(|planned| planned.limited_by.clone()));
    put(answer.outcome.as_ref().err().cloned());
    cells
}

/// Six digits, without a fraction where the number needs none.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e6 => format!("{value:.0}"),
        size => {
            let decimals = (5 - size.log10().floor() as i32).max(0) as usize;
            let text = format!("{value:.decimals$}");
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').into(),
                false => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_digits() {
        for (value, text) in [
            (0.0, "0"),
            (27.3, "27.3"),
            (0.0001234567, "0.000123457"),
            (153562.4, "153562"),
            (2.5e7, "25000000"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
