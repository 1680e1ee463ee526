//! `simulate`: one step of a plan, op by op.

use super::pictures;
use crate::arguments::SimulateArguments;
use crate::error::{CliError, Outcome};
use crate::inputs::calibration::confidence_of;
use crate::inputs::{self, calibration};
use crate::output;
use crate::render::{forecast as page, json, ops, report, words};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::plan::Plan;
use trainwright_spec::stack::Stack;
use trainwright_timeline::chrome::write_chrome;
use trainwright_timeline::timeline::Timeline;

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read or written.
pub fn run(arguments: &SimulateArguments) -> Result<Outcome, CliError> {
    let files = [("--trace", &arguments.trace), ("--report", &arguments.report)];
    let files = [&files[..], &pictures::files(&arguments.pictures)].concat();
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let mut plan = inputs::plan(&arguments.plan, &arguments.profile, arguments.expert_load.as_deref())?;
    if let Some(path) = &arguments.schedule_csv {
        inputs::schedule_of(&mut plan, path)?;
    }
    if let Some(name) = &arguments.stack {
        let refuse = |error| CliError::of_input(Some("--stack"), error);
        plan.stack = Stack::from_name(name).map_err(refuse)?;
        plan.check(&arguments.plan).map_err(refuse)?;
        // The stack of the catalog has the numbers of its sources; the plan's cluster may have a calibration.
        let of_cluster = calibration::of(arguments.calibration.given(), &plan.cluster)?;
        of_cluster.apply(&mut plan.cluster.clone(), &mut plan.stack);
    }
    let plan = calibration::calibrated(plan, arguments.calibration.given())?;
    let (forecast, timeline) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
    let confidence = confidence_of(&plan, &forecast, arguments.calibration.given())?;
    // The files first, so that a reader who closes standard output early does not lose them.
    let written = write_files(arguments, &plan, &timeline).and_then(|()| {
        output::save_given("--report", &arguments.report, || {
            report::simulated(&plan, &forecast, &confidence, &timeline)
        })
    });
    let columns = arguments.width.unwrap_or_else(output::columns);
    if arguments.json {
        output::print(&json::forecast(&plan, &forecast, &confidence))?;
    } else if !alone {
        let ops = if arguments.ops { ops::ops(&plan, &forecast) } else { String::new() };
        output::print(&(page::page(&plan, &forecast, &confidence, &timeline, columns) + &ops))?;
    } else if !forecast.fits {
        output::say(&format!("the plan {}", words::fit(&plan, &forecast)));
    }
    written?;
    Ok(if forecast.fits { Outcome::Done } else { Outcome::NothingFits })
}

fn write_files(arguments: &SimulateArguments, plan: &Plan, timeline: &Timeline) -> Result<(), CliError> {
    if let Some(path) = &arguments.trace {
        output::write("--trace", path, |mut out| write_chrome(timeline, &mut out))?;
    }
    if let Some(folder) = &arguments.chakra {
        super::chakra::write(folder, plan)?;
    }
    pictures::write(&arguments.pictures, plan, timeline)
}
