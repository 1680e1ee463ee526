//! `predict`: a forecast for every row of a table of runs.

use super::{kernel_tables, serving_tables};
use crate::arguments::PredictArguments;
use crate::error::{CliError, Outcome};
use crate::progress::Bar;
use crate::render::scoreboard::statements::Statement;
use crate::render::{json, loop_errors, reliability, run_errors as page, scoreboard};
use crate::{inputs, output};
use std::io;
use std::path::Path;
use trainwright_evidence::forecasts::{forecasts, forecasts_with};
use trainwright_evidence::loops;
use trainwright_evidence::peers::{self, Ours};
use trainwright_evidence::runs::{NoPlan, Prediction, Run, Table};
use trainwright_evidence::summary::Summary;
use trainwright_spec::calibration::Calibration;

/// Rows between two steps of the progress bar: many for each core.
const ROWS_AT_ONCE: usize = 200;

/// Runs the command.
///
/// # Errors
/// A table that cannot be read or written. The fault of a row is in that row of the output.
pub fn run(arguments: &PredictArguments) -> Result<Outcome, CliError> {
    let Some(path) = &arguments.cases else {
        return match arguments.inference.is_empty() {
            true => kernel_tables::predict(arguments),
            false => serving_tables::predict(arguments),
        };
    };
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let table = inputs::table(path)?;
    let runs: Vec<Result<Run, NoPlan>> = table.runs().collect();
    let calibration = inputs::calibration::calibration(&arguments.calibration)?;
    let (predictions, catalog) = match &arguments.scoreboard {
        None => (forecasts_of(&runs, &calibration), Vec::new()),
        Some(_) => {
            let none = inputs::calibration::calibration("none")?;
            let [predictions, catalog] = forecasts_with(&runs, [&calibration, &none]);
            (predictions, catalog)
        }
    };
    if let Some(path) = &arguments.out {
        output::write("--out", path, |out| table.write(&predictions, out))?;
    }
    let summary = Summary::new(runs.iter().zip(&predictions));
    if let Some(folder) = &arguments.scoreboard {
        let rows: Vec<_> = runs.iter().zip(&predictions).collect();
        let catalog: Vec<_> = runs.iter().zip(&catalog).collect();
        let comparisons = comparisons(path, &rows, &catalog, &calibration)?;
        let page = scoreboard::page(&rows, &summary, &calibration, &comparisons);
        write_scoreboard(folder, &rows, page)?;
    }
    if arguments.json {
        output::print(&json::print(&summary))?;
    } else if !alone {
        output::print(&page::summary(&summary))?;
        let errors = loops::loop_errors(&loops::loop_times(&table, &runs, &predictions));
        if !errors.is_empty() {
            let pairs = loops::scaling_pairs(&table, &runs, &predictions);
            output::print(&loop_errors::page(&errors, &pairs, &loops::sync_anchors()))?;
        }
    }
    Ok(Outcome::Done)
}

/// A forecast, or a refusal, for each run, in order.
fn forecasts_of(runs: &[Result<Run, NoPlan>], calibration: &Calibration) -> Vec<Result<Prediction, NoPlan>> {
    let bar = Bar::new();
    let mut all = Vec::with_capacity(runs.len());
    for part in runs.chunks(ROWS_AT_ONCE) {
        bar.show("rows", all.len(), runs.len());
        all.extend(forecasts(part, calibration));
    }
    all
}

/// Writes `page.md`, its pictures and `forecasts.csv`.
fn write_scoreboard(folder: &str, rows: scoreboard::Rows, page: String) -> Result<(), CliError> {
    let pages = [("page.md", page), ("reliability.md", reliability::page(rows))];
    let forecasts = [("forecasts.csv", scoreboard::forecasts(rows))];
    for (name, content) in pages.into_iter().chain(scoreboard::pictures(rows)).chain(forecasts) {
        output::save_in("--scoreboard", folder, name, content)?;
    }
    Ok(())
}

/// The sections of the page that need more than the table of runs: `catalog`, the forecasts with the catalog alone, and the
/// tables of statements and of peers that lie beside it.
fn comparisons(
    cases: &str,
    rows: scoreboard::Rows,
    catalog: scoreboard::Rows,
    calibration: &Calibration,
) -> Result<String, CliError> {
    let unseen = |(run, _): &&scoreboard::Row| {
        run.as_ref().is_ok_and(|run| scoreboard::unseen::is_unseen(run, calibration))
    };
    let [of_fit, of_catalog] =
        [rows, catalog].map(|rows| rows.iter().filter(unseen).copied().collect::<Vec<_>>());
    let mut sections = scoreboard::unseen::section(&of_fit, &of_catalog, calibration);
    if let Some(path) = beside(cases, "statements.csv") {
        sections.push_str(&statements(&path, calibration)?);
    }
    if let Some(path) = beside(cases, "peers.csv") {
        let peers =
            peers::read(inputs::text(None, &path)?.as_bytes()).map_err(|fault| invalid(&path, fault))?;
        let kinds = [
            ("all", ours(rows, catalog, |_| true)),
            ("quality A", ours(rows, catalog, |run| run.quality == "A")),
        ];
        let compared = kinds
            .iter()
            .flat_map(|(kind, ours)| peers::compare(&peers, ours).into_iter().map(|errors| (*kind, errors)));
        sections.push_str(&scoreboard::peers::section(&compared.collect::<Vec<_>>()));
    }
    Ok(sections)
}

/// A file in the folder of the table of runs, if it is there.
fn beside(cases: &str, name: &str) -> Option<String> {
    let path = Path::new(cases).with_file_name(name);
    (cases != "-" && path.is_file()).then(|| path.display().to_string())
}

fn invalid(path: &str, fault: impl std::fmt::Display) -> CliError {
    let source = io::Error::new(io::ErrorKind::InvalidData, fault.to_string());
    CliError::Reading { argument: None, path: path.into(), source }
}

fn statements(path: &str, calibration: &Calibration) -> Result<String, CliError> {
    let table = Table::read(inputs::text(None, path)?.as_bytes()).map_err(|fault| invalid(path, fault))?;
    let runs: Vec<Result<Run, NoPlan>> = table.runs().collect();
    let predictions = forecasts(&runs, calibration);
    let words = table.column("statement").into_iter().zip(table.column("assumed"));
    let statements =
        runs.iter().zip(&predictions).zip(words).map(|((run, prediction), (stated, assumed))| {
            let run = run.as_ref().map_err(|fault| invalid(path, fault))?;
            Ok(Statement { run, prediction, stated, assumed })
        });
    Ok(scoreboard::statements::section(&statements.collect::<Result<Vec<_>, CliError>>()?))
}

/// The runs that count with a measured time and both forecasts.
fn ours<'a>(
    rows: scoreboard::Rows<'a>,
    catalog: scoreboard::Rows<'a>,
    counts: fn(&Run) -> bool,
) -> Vec<Ours<'a>> {
    let run = |((run, fitted), (_, catalog)): (&scoreboard::Row<'a>, &scoreboard::Row<'a>)| {
        let (run, fitted, catalog) = (run.as_ref().ok()?, fitted.as_ref().ok()?, catalog.as_ref().ok()?);
        let forecasts = [fitted.step_seconds, catalog.step_seconds];
        counts(run).then_some(())?;
        Some(Ours { id: &run.id, measured: run.step_seconds()?, forecasts })
    };
    rows.iter().zip(catalog).filter_map(run).collect()
}
