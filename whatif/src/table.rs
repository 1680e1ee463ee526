//! Answers as rows of CSV and of JSON, with the unit in every column's name.
//!
//! Columns are added, not renamed or removed. In CSV numbers have six digits, and unknown values are empty.

use crate::answer::Answer;
use crate::pareto::{Cost, front};
use crate::run::Run;
use crate::scenario::Scenario;
use serde_json::{Value, json};
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
type Column = (&'static str, fn(&Row) -> Option<Value>);

/// The columns after those of the axes.
const COLUMNS: [Column; 30] = [
    ("gpus", |row| Some(json!(row.scenario?.cluster().gpus()))),
    ("nodes", |row| Some(json!(row.scenario?.cluster().nodes))),
    ("model", |row| Some(json!(row.scenario?.model().name))),
    ("parameters", |row| Some(json!(row.scenario?.model().parameters()))),
    ("sequence_tokens", |row| Some(json!(row.scenario?.job().sequence))),
    ("global_batch_sequences", |row| Some(json!(row.scenario?.job().global_batch))),
    ("step_time_s", |row| Some(json!(row.forecast?.step_time.get()))),
    ("tokens_per_s", |row| Some(json!(row.forecast?.tokens_per_s))),
    ("tokens_per_s_per_gpu", |row| Some(json!(row.forecast?.tokens_per_s_per_gpu))),
    ("mfu_causal_attention", |row| Some(json!(row.forecast?.mfu_causal_attention))),
    ("peak_memory_gib", |row| Some(json!(row.forecast?.peak_memory.as_gib()))),
    ("tensor", |row| Some(json!(row.plan?.mesh.tensor))),
    ("pipeline", |row| Some(json!(row.plan?.mesh.pipeline))),
    ("data", |row| Some(json!(row.plan?.mesh.data))),
    ("virtual_stages", |row| Some(json!(row.plan?.virtual_stages))),
    ("micro_batch", |row| Some(json!(row.plan?.micro_batch))),
    ("schedule", |row| Some(json!(row.plan?.schedule.to_string()))),
    ("usd_per_billion_tokens", |row| Some(json!(row.billion.as_ref()?.cost?.get()))),
    ("kwh_per_billion_tokens", |row| Some(json!(1e3 * row.billion.as_ref()?.energy?.as_mwh()))),
    ("run_tokens", |row| Some(json!(row.scenario?.rates.tokens?))),
    ("run_days", |row| Some(json!(row.run.as_ref()?.time.as_days()))),
    ("run_gpu_hours", |row| Some(json!(row.run.as_ref()?.gpu_hours))),
    ("run_usd", |row| Some(json!(row.run.as_ref()?.cost?.get()))),
    ("run_mwh", |row| Some(json!(row.run.as_ref()?.energy?.as_mwh()))),
    ("pareto", |row| row.plan.map(|_| json!(row.on_front))),
    ("limited_by", |row| Some(json!(row.answer.outcome.as_ref().ok()?.limited_by))),
    ("reason", |row| row.answer.outcome.as_ref().err().map(|reason| json!(reason))),
    ("context", |row| Some(json!(row.plan?.mesh.context))),
    ("expert", |row| Some(json!(row.plan?.mesh.expert))),
    ("offload", |row| Some(json!(row.plan?.offload.in_words()))),
];

/// A row for each answer, below the names of the columns; `axes` are the names of the varied inputs.
pub fn csv(axes: &[String], answers: &[Answer]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let write = |record: Vec<String>| writer.write_record(record).expect("memory takes rows of equal length");
    let rows = rows(answers).zip(answers).map(|(cells, answer)| {
        let cells = cells.into_iter().map(|cell| cell.as_ref().map(text).unwrap_or_default());
        answer.point.iter().cloned().chain(cells).collect()
    });
    std::iter::once(names(axes)).chain(rows).for_each(write);
    let bytes = writer.into_inner().expect("memory takes all that is written");
    String::from_utf8(bytes).expect("all that was written is text")
}

/// The same rows as objects, with all digits; `point` has the varied inputs, and what is unknown is null.
pub fn objects(axes: &[String], answers: &[Answer]) -> Vec<Value> {
    let object = |(cells, answer): (Vec<Option<Value>>, &Answer)| {
        let point = answer.point.iter().map(|value| Value::from(value.as_str()));
        let point: Value = axes.iter().cloned().zip(point).collect();
        let names = COLUMNS.iter().map(|(name, _)| name.to_string());
        let cells = names.zip(cells.into_iter().map(Option::unwrap_or_default));
        std::iter::once(("point".to_string(), point)).chain(cells).collect()
    };
    rows(answers).zip(answers).map(object).collect()
}

/// The names of all columns.
fn names(axes: &[String]) -> Vec<String> {
    let names = COLUMNS.map(|(name, _)| name);
    // An axis may have the name of a column.
    let axes = axes.iter().map(|axis| match names.contains(&axis.as_str()) {
        true => format!("varied_{axis}"),
        false => axis.clone(),
    });
    axes.chain(names.map(str::to_string)).collect()
}

/// The cells of each answer behind those of its point.
fn rows(answers: &[Answer]) -> impl Iterator<Item = Vec<Option<Value>>> {
    answers.iter().zip(front(answers, Cost::of(answers))).map(|(answer, on_front)| {
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
        COLUMNS.iter().map(|(_, cell)| cell(&row)).collect()
    })
}

/// A cell as CSV has it.
fn text(cell: &Value) -> String {
    match cell {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Number(value) if value.is_f64() => number(value.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// Six digits, without a fraction where the number needs none.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e6 => format!("{value:.0}"),
        size => {
            let decimals = (5 - libm::log10(size).floor() as i32).max(0) as usize;
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
