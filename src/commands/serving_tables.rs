//! `predict --inference` and `fit --inference`: tables of measured serving runs.

use crate::arguments::{FitArguments, PredictArguments};
use crate::error::{CliError, Outcome, refuse};
use crate::render::counts::Counts;
use crate::render::{json, serving_errors as page};
use crate::{inputs, output};
use trainwright_evidence::kernels::NoCase;
use trainwright_evidence::serving::score::{Residual, ranges, residuals, scores};
use trainwright_evidence::serving::{ServingForecast, ServingTable};
use trainwright_spec::serving::ServingRanges;

/// Rows whose quality is one of these count in errors.
const COUNTED: &str = "AB";

/// Forecasts every row of the tables, and their errors.
///
/// # Errors
/// A table that cannot be read or written. The fault of a row is in that row of the output.
pub fn predict(arguments: &PredictArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let tables = tables(&arguments.inference)?;
    let forecasts: Vec<Forecasts> = tables.iter().map(ServingTable::forecasts).collect();
    if let Some(path) = &arguments.out {
        let (table, forecasts) = output::only("--out", path, tables.iter().zip(&forecasts))?;
        output::write("--out", path, |out| table.write(forecasts, out))?;
    }
    let residuals = all_residuals(&tables, &forecasts, COUNTED);
    let scores = scores(&residuals, ServingRanges::of_catalog());
    let counts = Counts::of(forecasts.iter().flatten());
    if let Some(folder) = &arguments.scoreboard {
        output::save_in("--scoreboard", folder, "serving.md", page::markdown(&scores, &counts))?;
    }
    if arguments.json {
        output::print(&json::print(&page::as_json(&scores, &counts)))?;
    } else if !alone {
        output::print(&page::text(&scores, &counts))?;
    }
    Ok(Outcome::Done)
}

/// Writes the ranges of the engines that the tables measure to the file `--out`.
///
/// # Errors
/// A table that cannot be read or has no measured run, a file that cannot be written.
pub fn fit(arguments: &FitArguments) -> Result<Outcome, CliError> {
    let tables = tables(&arguments.inference)?;
    let forecasts: Vec<Forecasts> = tables.iter().map(ServingTable::forecasts).collect();
    let residuals = all_residuals(&tables, &forecasts, COUNTED);
    if residuals.is_empty() {
        let allowed = "no row of quality A or B has both a measurement and a forecast";
        return Err(refuse("--inference", arguments.inference.join(" "), allowed));
    }
    let source = arguments.source.clone().unwrap_or_else(|| arguments.inference.join(", "));
    let fitted = ranges(&residuals.iter().collect::<Vec<_>>(), &source);
    if let Some(path) = &arguments.out {
        output::save("--out", path, fitted.to_toml())?;
    }
    output::print(&page::fitted(&fitted))?;
    Ok(Outcome::Done)
}

/// Forecasts of a table's rows.
type Forecasts = Vec<Result<ServingForecast, NoCase>>;

fn all_residuals(tables: &[ServingTable], forecasts: &[Forecasts], qualities: &str) -> Vec<Residual> {
    let of = |(table, forecasts): (&ServingTable, &Forecasts)| residuals(table, forecasts, qualities);
    tables.iter().zip(forecasts).flat_map(of).collect()
}

fn tables(paths: &[String]) -> Result<Vec<ServingTable>, CliError> {
    let read = |path: &String| {
        let text = inputs::text(Some("--inference"), path)?;
        let table = ServingTable::read(text.as_bytes())
            .map_err(|source| CliError::ServingTable { path: path.clone(), source })?;
        inputs::remark_unknown(path, &table.unknown_columns());
        Ok(table)
    };
    paths.iter().map(read).collect()
}
