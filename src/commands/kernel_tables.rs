//! `predict --kernels` and `fit --kernels`: tables of measured kernels of inference libraries.

use crate::arguments::{FitArguments, PredictArguments};
use crate::error::{CliError, Outcome, refuse};
use crate::render::counts::Counts;
use crate::render::{json, kernels as page};
use crate::{inputs, output};
use trainwright_evidence::kernels::score::{Score, scores};
use trainwright_evidence::kernels::{Case, KernelTable, fit};
use trainwright_spec::library::Library;

/// Forecasts every row of the tables, and their errors.
///
/// # Errors
/// A table that cannot be read or written. The fault of a row is in that row of the output.
pub fn predict(arguments: &PredictArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let tables = tables(&arguments.kernels)?;
    let libraries = Library::all();
    let forecasts: Vec<_> = tables.iter().map(|table| table.forecasts(libraries)).collect();
    if let Some(path) = &arguments.out {
        let (table, forecasts) = output::only("--out", path, tables.iter().zip(&forecasts))?;
        output::write("--out", path, |out| table.write(forecasts, out))?;
    }
    let cases: Vec<&Case> = tables.iter().flat_map(|table| table.cases.iter().flatten()).collect();
    let scores: Vec<Score> = scores(&cases, libraries, arguments.scoreboard.is_some());
    let counts = Counts::of(forecasts.iter().flatten());
    if let Some(folder) = &arguments.scoreboard {
        output::save_in("--scoreboard", folder, "kernels.md", page::markdown(&scores, &counts))?;
    }
    if arguments.json {
        output::print(&json::print(&page::as_json(&scores, &counts)))?;
    } else if !alone {
        output::print(&page::text(&scores, &counts))?;
    }
    Ok(Outcome::Done)
}

/// Fits the coefficients of libraries to the tables and writes a file for each into the folder `--out`.
///
/// # Errors
/// A table that cannot be read or has no measured call, a file that cannot be written.
pub fn fit(arguments: &FitArguments) -> Result<Outcome, CliError> {
    let tables = tables(&arguments.kernels)?;
    let cases = tables.iter().flat_map(|table| table.cases.iter().flatten());
    let source = arguments.source.clone().unwrap_or_else(|| arguments.kernels.join(", "));
    let libraries = fit::fit(cases, &source);
    if libraries.is_empty() {
        let allowed = "they have too few measured kernels on GPUs of the catalog".to_string();
        return Err(refuse("--kernels", arguments.kernels.join(" "), allowed));
    }
    if let Some(folder) = &arguments.out {
        for library in &libraries {
            output::save_in("--out", folder, &format!("{}.toml", library.name), library.to_toml())?;
        }
    }
    output::print(&page::fitted(&libraries))?;
    Ok(Outcome::Done)
}

fn tables(paths: &[String]) -> Result<Vec<KernelTable>, CliError> {
    let read = |path: &String| {
        let text = inputs::text(Some("--kernels"), path)?;
        KernelTable::read(text.as_bytes())
            .map_err(|source| CliError::KernelTable { path: path.clone(), source })
    };
    paths.iter().map(read).collect()
}
