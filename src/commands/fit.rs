//! `fit`: a calibration from measured runs, and how it does on sources that it has not seen.

use super::{kernel_tables, serving_tables};
use crate::arguments::FitArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::render::fit as page;
use crate::{inputs, output};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use trainwright_evidence::fit::evidence::residuals;
use trainwright_evidence::fit::{Case, fit};
use trainwright_evidence::runs::Run;

/// The quality of runs on which no range rests, since their measured times are estimates.
const DOUBTFUL: &str = "C";

/// Runs the command.
///
/// # Errors
/// A table that cannot be read or has no measured run, a file that cannot be written.
pub fn run(arguments: &FitArguments) -> Result<Outcome, CliError> {
    let Some(measurements) = &arguments.measurements else {
        return match arguments.inference.is_empty() {
            true => kernel_tables::fit(arguments),
            false => serving_tables::fit(arguments),
        };
    };
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], arguments.json)?;
    let table = inputs::table(measurements)?;
    let qualities: BTreeSet<&str> = arguments.quality.split(',').map(str::trim).collect();
    let wanted = |run: &&Run| run.quality.is_empty() || qualities.contains(run.quality.as_str());
    let runs: Vec<Run> = table.runs().flatten().filter(|run| run.quality != DOUBTFUL).collect();
    let fitted: Vec<&Run> = runs.iter().filter(wanted).collect();
    let cases: Vec<Case> = fitted.par_iter().filter_map(|run| Case::of(run)).collect();
    if cases.is_empty() {
        let allowed = format!("it has no run of quality {} with a step time and a plan", arguments.quality);
        return Err(refuse("measurements", measurements, allowed));
    }
    let mut fit = fit(&cases, format!("fit of {} runs of {}", cases.len(), measurements));
    fit.calibration.residuals = Arc::new(residuals(&runs, &fit));
    output::save_given("--out", &arguments.out, || fit.calibration.to_toml())?;
    if arguments.json {
        output::print(&page::json(&fit))?;
    } else if !alone {
        output::print(&page::page(&fit))?;
    }
    Ok(Outcome::Done)
}
