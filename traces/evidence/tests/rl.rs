//! Forecasts of loops with generation against measured ones (`traces/published`).

use std::collections::BTreeMap;
use std::fs::File;
use trainwright_evidence::forecasts::forecasts;
use trainwright_evidence::runs::{NoPlan, PHASE_COLUMNS, Run, Table};
use trainwright_spec::calibration::Calibration;

#[test]
fn errors_of_loops_do_not_grow() {
    let table = Table::read(File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../published/post_training/rl.csv")).unwrap()).unwrap();
    let runs: Vec<Result<Run, NoPlan>> = table.runs().collect();
    let predictions = forecasts(&runs, &Calibration::from_name("published").unwrap());
    let measured = PHASE_COLUMNS.map(|(column, _)| table.column(column));
    let mut errors: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    for (index, (run, prediction)) in runs.iter().zip(&predictions).enumerate() {
        let (Ok(run), Ok(prediction)) = (run, prediction) else {
            println!("{:50} {:?} {:?}", run.as_ref().map_or("?", |run| &run.id), run.as_ref().err(), prediction.as_ref().err());
            continue;
        };
        let figures = prediction.rl.as_ref().unwrap();
        let mut line = format!("{:58}", run.id.chars().take(58).collect::<String>());
        let mut add = |what: &'static str, forecast: f64, measured: Option<f64>| {
            line += &format!(" {what} {forecast:.1}");
            if let Some(measured) = measured.filter(|measured| *measured > 0.0) {
                line += &format!("/{measured:.1} ({:+.0}%)", 100.0 * (forecast / measured - 1.0));
                errors.entry((run.family(), what)).or_default().push((forecast / measured - 1.0).abs());
            }
        };
        if !run.outcome.contains("weight sync") {
            add("step", prediction.step_seconds, run.measured_step_time_s);
        }
        for (at, (column, _)) in PHASE_COLUMNS.iter().enumerate() {
            if let Some([time, ..]) = figures.phases[at] {
                add(column, time, measured[at][index].parse().ok());
            }
        }
        println!("{line} {} {:?}", prediction.outcome.name(), figures.faults);
    }
    for ((family, what), errors) in errors {
        let mut sorted = errors.clone();
        sorted.sort_by(f64::total_cmp);
        println!("{family:24} {what:20} {:3} median {:.1} %", sorted.len(), 100.0 * sorted[sorted.len() / 2]);
    }
}
