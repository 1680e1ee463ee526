//! `compare`: a measured step and its forecast, by kind of op.

use crate::arguments::CompareArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::render::compare::{Comparison, page};
use crate::render::report;
use crate::{inputs, output};
use trainwright_lower::lower;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{forecast, time_by_kind};

/// Runs the command.
///
/// # Errors
/// Bad input, and files that cannot be read or written.
pub fn run(arguments: &CompareArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--report", &arguments.report)], false)?;
    if arguments.measured.trace == "-" && arguments.plan == "-" {
        return Err(refuse("--plan", "-", "standard input is the trace: name a file"));
    }
    let plan = inputs::plan(&arguments.plan, &[], None)?;
    let plan = inputs::calibration::calibrated(plan, arguments.calibration.given())?;
    let ranks = plan.mesh.ranks();
    if arguments.rank >= ranks {
        return Err(refuse("--rank", arguments.rank, format!("the plan has ranks 0 to {}", ranks - 1)));
    }
    let measured = inputs::trace::measured(&arguments.measured)?;
    let costs = ClusterCosts::new(&plan.cluster);
    let (forecast, timeline) = forecast(&plan, &costs)?;
    let program = lower(&plan);
    let pipeline_rank = plan.mesh.coordinates(arguments.rank).pipeline;
    // All ranks of a stage do the same.
    let like = program.ranks.iter().position(|rank| rank.pipeline_rank == pipeline_rank);
    let like = like.expect("every stage has a simulated rank");
    let comparison = Comparison {
        plan: &plan,
        rank: arguments.rank,
        measured: &measured,
        step_time: forecast.step_time,
        forecast: time_by_kind(&program, like, &costs),
    };
    // The file first, so that a reader who closes standard output early does not lose it.
    let written = output::save_given("--report", &arguments.report, || {
        report::compared(&comparison, &forecast, &timeline)
    });
    if !alone {
        output::print(&page(&comparison))?;
    }
    written?;
    Ok(Outcome::Done)
}
