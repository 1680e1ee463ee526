//! `predict`: a forecast for every row of a table of runs.

use crate::arguments::PredictArguments;
use crate::error::{CliError, Outcome};
use crate::render::{json, reliability, run_errors as page, scoreboard};
use crate::{inputs, output};
use trainwright_evidence::forecasts::forecasts;
use trainwright_evidence::runs::{NoPlan, Run};
use trainwright_evidence::summary::Summary;
use trainwright_spec::calibration::Calibration;

/// Runs the command.
///
/// # Errors
/// A table that cannot be read or written. The fault of a row is in that row of the output.
pub fn run(arguments: &PredictArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let table = inputs::table(&arguments.cases)?;
    let runs: Vec<Result<Run, NoPlan>> = table.runs().collect();
    let calibration = inputs::calibration::calibration(&arguments.calibration)?;
    let predictions = forecasts(&runs, &calibration);
    if let Some(path) = &arguments.out {
        output::write("--out", path, |out| table.write(&predictions, out))?;
    }
    let summary = Summary::new(runs.iter().zip(&predictions));
    if let Some(folder) = &arguments.scoreboard {
        let rows: Vec<_> = runs.iter().zip(&predictions).collect();
        write_scoreboard(folder, &rows, &summary, &calibration)?;
    }
    if arguments.json {
        output::print(&json::print(&summary))?;
    } else if !alone {
        output::print(&page::summary(&summary))?;
    }
    Ok(Outcome::Done)
}

/// Writes `page.md`, its pictures and `forecasts.csv`.
fn write_scoreboard(
    folder: &str,
    rows: scoreboard::Rows,
    summary: &Summary,
    calibration: &Calibration,
) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|source| CliError::Writing {
        argument: "--scoreboard",
        path: folder.to_string(),
        source,
    })?;
    let comparisons = unseen_sources(rows, calibration)?;
    let page = ("page.md", scoreboard::page(rows, summary, calibration, &comparisons));
    let reliability = ("reliability.md", reliability::page(rows));
    for (name, content) in [page, reliability].into_iter().chain(scoreboard::pictures(rows)) {
        let path = format!("{}/{name}", folder.trim_end_matches('/'));
        output::save("--scoreboard", &path, content)?;
    }
    let path = format!("{}/forecasts.csv", folder.trim_end_matches('/'));
    output::save("--scoreboard", &path, scoreboard::forecasts(rows))
}

/// The section on sources that the calibration has no run of, which are forecast again with the catalog alone.
fn unseen_sources(rows: scoreboard::Rows, calibration: &Calibration) -> Result<String, CliError> {
    let unseen = |(run, _): &&scoreboard::Row| {
        run.as_ref().is_ok_and(|run| scoreboard::unseen::is_unseen(run, calibration))
    };
    let fitted: Vec<_> = rows.iter().filter(unseen).copied().collect();
    let runs: Vec<_> = fitted.iter().map(|(run, _)| (*run).clone()).collect();
    let catalog = forecasts(&runs, &inputs::calibration::calibration("none")?);
    let catalog: Vec<_> = runs.iter().zip(&catalog).collect();
    Ok(scoreboard::unseen::section(&fitted, &catalog, calibration))
}
