//! Answers as CSV, with the unit in every column's name.
//!
//! Columns are added, not renamed or removed. Numbers have six digits; unknown values are empty.

use crate::answer::Answer;
use crate::pareto::{Cost, front};
use crate::run::Run;
use crate::scenario::Scenario;
use trainwright_sim::Forecast;
use trainwright_spec::plan::Plan;

/// A row's scenario and plan, each `None` if the answer has none.
struct Row<'a> {
    answer: &'a Answer,
    scenario: Option<&'a Scenario>,
    plan: Option<&'a Plan>,
    forecast: Option<&'a Forecast>,
    /// Of a billion tokens.
    billion: Option<Run>,
    /// Of the scenario's tokens.
    run: Option<Run>,
    on_front: bool,
}

/// A column's name and its cell; `None` is empty.
type Column = (&'static str, fn(&Row) -> Option<String>);

/// The columns after those of the axes.
const COLUMNS: [Column; 27] = [
    ("gpus", |row| Some(row.scenario?.cluster().gpus().to_string())),
    ("nodes", |row| Some(row.scenario?.cluster().nodes.to_string())),
    ("model", |row| Some(row.scenario?.model().name.clone())),
    ("parameters", |row| Some(row.scenario?.model().parameters().to_string())),
    ("sequence_tokens", |row| Some(row.scenario?.job().sequence.to_string())),
    ("global_batch_sequences", |row| Some(row.scenario?.job().global_batch.to_string())),
    ("step_time_s", |row| Some(number(row.forecast?.step_time.get()))),
    ("tokens_per_s", |row| Some(number(row.forecast?.tokens_per_s))),
    ("tokens_per_s_per_gpu", |row| Some(number(row.forecast?.tokens_per_s_per_gpu))),
    ("mfu_causal_attention", |row| Some(number(row.forecast?.mfu_causal_attention))),
    ("peak_memory_gib", |row| Some(number(row.forecast?.peak_memory.as_gib()))),
    ("tensor", |row| Some(row.plan?.mesh.tensor.to_string())),
    ("pipeline", |row| Some(row.plan?.mesh.pipeline.to_string())),
    ("data", |row| Some(row.plan?.mesh.data.to_string())),
    ("virtual_stages", |row| Some(row.plan?.virtual_stages.to_string())),
    ("micro_batch", |row| Some(row.plan?.micro_batch.to_string())),
    ("schedule", |row| Some(row.plan?.schedule.to_string())),
    ("usd_per_billion_tokens", |row| Some(number(row.billion.as_ref()?.cost?.get()))),
    ("kwh_per_billion_tokens", |row| Some(number(1e3 * row.billion.as_ref()?.energy?.as_mwh()))),
    ("run_tokens", |row| Some(number(row.scenario?.rates.tokens?))),
    ("run_days", |row| Some(number(row.run.as_ref()?.time.as_days()))),
    ("run_gpu_hours", |row| Some(number(row.run.as_ref()?.gpu_hours))),
    ("run_usd", |row| Some(number(row.run.as_ref()?.cost?.get()))),
    ("run_mwh", |row| Some(number(row.run.as_ref()?.energy?.as_mwh()))),
    ("pareto", |row| row.plan.map(|_| if row.on_front { "yes" } else { "no" }.into())),
    ("limited_by", |row| Some(row.answer.outcome.as_ref().ok()?.limited_by.clone())),
    ("reason", |row| row.answer.outcome.as_ref().err().cloned()),
];

/// A row for each answer, below the names of the columns; `axes` are the names of the varied inputs.
pub fn csv(axes: &[String], answers: &[Answer]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let names = COLUMNS.map(|(name, _)| name);
    // An axis may have the name of a column.
    let axes = axes.iter().map(|axis| match names.contains(&axis.as_str()) {
        true => format!("varied_{axis}"),
        false => axis.clone(),
    });
    let write = |record: Vec<String>| writer.write_record(record).expect("memory takes rows of equal length");
    let rows = answers.iter().zip(front(answers, Cost::of(answers))).map(|(answer, on_front)| {
        let planned = answer.outcome.as_ref().ok();
        let row = Row {
            answer,
            scenario: answer.scenario.as_ref(),
            plan: planned.map(|planned| &planned.plan),
            forecast: planned.map(|planned| &planned.forecast),
            billion: answer.billion(),
            run: answer.whole_run(),
            on_front,
        };
        let cells = COLUMNS.iter().map(|(_, cell)| cell(&row).unwrap_or_default());
        answer.point.iter().cloned().chain(cells).collect()
    });
    std::iter::once(axes.chain(names.map(str::to_string)).collect()).chain(rows).for_each(write);
    let bytes = writer.into_inner().expect("memory takes all that is written");
    String::from_utf8(bytes).expect("all that was written is text")
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
