//! `goodput`: a plan's speed with failures and checkpoints.

use crate::arguments::GoodputArguments;
use crate::error::{CliError, Outcome};
use crate::render::goodput::{Answer, json, page};
use crate::{inputs, output};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_sim::goodput::goodput;
use trainwright_spec::reliability::Reliability;

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read.
pub fn run(arguments: &GoodputArguments) -> Result<Outcome, CliError> {
    let plan = inputs::plan(&arguments.plan, &[], None)?;
    let plan = inputs::calibration::calibrated(plan, arguments.calibration.given())?;
    let reliability = Reliability::from_name(&arguments.reliability)
        .map_err(|error| CliError::of_input(Some("--reliability"), error))?;
    let (forecast, _) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
    let answer = Answer {
        plan: &plan,
        step_time: forecast.step_time,
        tokens_per_s: forecast.tokens_per_s,
        goodput: goodput(&plan, &reliability),
        reliability: &reliability,
        tokens: arguments.tokens,
    };
    output::print(&if arguments.json { json(&answer) } else { page(&answer) })?;
    Ok(if forecast.fits { Outcome::Done } else { Outcome::NothingFits })
}
