//! The scoreboard is of this program: some of its forecasts are made again, its page has their figures,
//! and errors do not grow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use trainwright_evidence::runs::{Outcome, Run, Table};
use trainwright_evidence::statistics::{mean, median};

/// One of this number of rows is forecast again.
const EVERY: usize = 16;

/// The errors of quality A that we have today, in percent, with a margin.
const MEDIAN: f64 = 5.5;
const MEAN: f64 = 12.8;
const MEMORY: f64 = 5.0;
const OUTCOMES_WRONG: f64 = 4.2;

/// A row of `forecasts.csv`: step time in seconds, memory in GB, and `ok`, `oom` or why there is none.
#[derive(Debug, Clone, PartialEq)]
struct Recorded {
    step: Option<f64>,
    memory: Option<f64>,
    outcome: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/scoreboard")
}

fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/published/training.csv")
}

fn recorded() -> BTreeMap<String, Recorded> {
    let mut reader = csv::Reader::from_path(folder().join("forecasts.csv")).unwrap();
    let row = |row: csv::StringRecord| {
        let recorded =
            Recorded { step: row[1].parse().ok(), memory: row[2].parse().ok(), outcome: row[3].to_string() };
        (row[0].to_string(), recorded)
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

fn runs() -> Vec<Run> {
    let text = std::fs::read(published()).unwrap();
    Table::read(text.as_slice()).unwrap().runs().filter_map(Result::ok).collect()
}

#[test]
fn the_forecasts_are_those_of_today() {
    let folder = tempfile::tempdir().unwrap();
    let mut reader = csv::Reader::from_path(published()).unwrap();
    let cases = folder.path().join("cases.csv");
    let mut writer = csv::Writer::from_path(&cases).unwrap();
    writer.write_record(reader.headers().unwrap()).unwrap();
    for record in reader.records().step_by(EVERY) {
        writer.write_record(&record.unwrap()).unwrap();
    }
    writer.flush().unwrap();
    let out = folder.path().join("out.csv");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainwright"));
    command.arg("predict").arg(&cases).arg("--out").arg(&out);
    assert!(command.output().unwrap().status.success());

    let recorded = recorded();
    let mut reader = csv::Reader::from_path(&out).unwrap();
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let [id, step, memory, outcome, status] =
        ["id", "predicted_step_time_s", "predicted_peak_memory_gb", "predicted_outcome", "status"]
            .map(column);
    let mut stale = Vec::new();
    for record in reader.records() {
        let row = record.unwrap();
        let status = if &row[status] == "ok" { &row[outcome] } else { &row[status] };
        let today = Recorded {
            step: row[step].parse().ok(),
            memory: row[memory].parse().ok(),
            outcome: status.to_string(),
        };
        if recorded.get(&row[id]) != Some(&today) {
            stale.push(format!("{}: {:?}, recorded {:?}", &row[id], today, recorded.get(&row[id])));
        }
    }
    assert!(
        stale.is_empty(),
        "make the scoreboard again (its page says how); {} rows differ:\n{}",
        stale.len(),
        stale[..stale.len().min(10)].join("\n")
    );
}

#[test]
fn the_page_has_the_figures_of_its_forecasts_and_errors_do_not_grow() {
    let recorded = recorded();
    let a: Vec<Run> = runs().into_iter().filter(|run| run.quality == "A").collect();
    let forecast = |run: &Run| recorded.get(&run.id);
    let errors: Vec<f64> = a
        .iter()
        .filter_map(|run| Some(100.0 * (forecast(run)?.step? / run.step_seconds()? - 1.0).abs()))
        .collect();
    assert!(errors.len() > 800, "{}", errors.len());
    let (middle, average) = (median(&errors), mean(&errors));
    let page = std::fs::read_to_string(folder().join("page.md")).unwrap();
    let row = format!("| A | {} | {middle:.1} | {average:.1} |", errors.len());
    assert!(page.contains(&row), "the page lacks `{row}`");
    assert!(middle <= MEDIAN && average <= MEAN, "median {middle:.1} %, mean {average:.1} %");

    let memory: Vec<f64> = runs()
        .iter()
        .filter_map(|run| Some(100.0 * (forecast(run)?.memory? / run.measured_peak_memory_gb? - 1.0).abs()))
        .collect();
    assert!(mean(&memory) <= MEMORY, "memory {:.1} %", mean(&memory));
    let forecast_ran = |run: &&Run| forecast(run).is_some_and(|forecast| forecast.step.is_some());
    let judged: Vec<(Outcome, &Run)> =
        a.iter().filter(forecast_ran).filter_map(|run| Some((run.outcome()?, run))).collect();
    let wrong =
        judged.iter().filter(|(outcome, run)| forecast(run).unwrap().outcome != outcome.name()).count();
    let wrong = 100.0 * wrong as f64 / judged.len() as f64;
    assert!(wrong <= OUTCOMES_WRONG, "{wrong:.1} % of the outcomes are wrong");
}

/// What the README and docs/trust.md say of the errors is what the scoreboard says.
#[test]
fn other_pages_quote_the_scoreboard() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // As one line each, since sentences are wrapped.
    let read = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let cells = |path: &str, row: &str| -> Vec<String> {
        let page = std::fs::read_to_string(folder().join(path)).unwrap();
        let line =
            page.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{path}: no {row}"));
        line[row.len()..].split('|').map(|cell| cell.trim().to_string()).collect()
    };
    let aim = |row: &str, column: usize| cells("page.md", row)[column].clone();
    let left_out = |figure: &str| {
        aim(&format!("| step time, quality A, each source left out of the fit: {figure} error |"), 1)
    };
    let fitted = |figure: &str| aim(&format!("| (the same in the fit: {figure} error) |"), 1);
    let inside = |slice: &str| cells("reliability.md", &format!("| {slice} |"))[2].clone();
    let sentences = [
        ("README.md", format!("median {} %, mean {} % |", left_out("median"), left_out("mean"))),
        (
            "docs/trust.md",
            format!("a median error of {} % and a mean error of {} %.", left_out("median"), left_out("mean")),
        ),
        (
            "docs/trust.md",
            format!("Fitted to all sources, it has {} % and {} %", fitted("median"), fitted("mean")),
        ),
        (
            "docs/trust.md",
            format!("The mean error of memory is {} %.", aim("| memory, all rows: mean error |", 1)),
        ),
        (
            "docs/trust.md",
            format!("is right for {} % of the runs.", aim("| runs that fit or not, forecast right |", 1)),
        ),
        (
            "docs/trust.md",
            format!(
                "it holds {} of all step times, {} of those of the best quality, {} of those of mixtures of experts, \
                 and {} of those of tensor groups over nodes.",
                inside("all"),
                inside("quality A"),
                inside("mixtures of experts"),
                inside("tensor groups over nodes")
            ),
        ),
        (
            "docs/trust.md",
            format!(
                "with a probability of 80 to 95 %, {} % fitted",
                cells("reliability.md", "| 80 % to 95 % |")[2].split('.').next().unwrap()
            ),
        ),
    ];
    for (page, sentence) in sentences {
        assert!(read(page).contains(&sentence), "{page} lacks `{sentence}`");
    }
}
