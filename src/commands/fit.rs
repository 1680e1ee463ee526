//! `fit`: a calibration from measured runs, and how it does on sources that it has not seen.

use crate::arguments::FitArguments;
use crate::error::{CliError, Outcome};
use crate::render::fit as page;
use crate::{inputs, output};
use rayon::prelude::*;
use std::collections::BTreeSet;
use trainwright_evidence::fit::{Case, fit};
use trainwright_evidence::runs::Run;

/// Runs the command.
///
/// # Errors
/// A table that cannot be read or has no measured run, a file that cannot be written.
pub fn run(arguments: &FitArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--out", &arguments.out)], false)?;
    let table = inputs::table(&arguments.measurements)?;
    let qualities: BTreeSet<&str> = arguments.quality.split(',').map(str::trim).collect();
    let wanted = |run: &Run| run.quality.is_empty() || qualities.contains(run.quality.as_str());
    let runs: Vec<Run> = table.runs().flatten().filter(wanted).collect();
    let cases: Vec<Case> = runs.par_iter().filter_map(Case::of).collect();
    if cases.is_empty() {
        return Err(CliError::Argument {
            argument: "measurements".into(),
            value: arguments.measurements.clone(),
            allowed: format!("it has no run of quality {} with a step time and a plan", arguments.quality),
        });
    }
    let fit = fit(&cases, format!("fit of {} runs of {}", cases.len(), arguments.measurements));
    if let Some(path) = &arguments.out {
        output::write("--out", path, |out| out.write_all(fit.calibration.to_toml().as_bytes()))?;
    }
    if !alone {
        output::print(&page::page(&fit))?;
    }
    Ok(Outcome::Done)
}
