//! Which calibration a forecast has.

use super::text;
use crate::error::CliError;
use trainwright_sim::Forecast;
use trainwright_sim::likeness::{Confidence, confidence};
use trainwright_spec::calibration::{Calibration, DEFAULT};
use trainwright_spec::catalog;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::plan::Plan;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

/// A calibration of the catalog, or one in a file: a path with a `/` or ending in .toml.
///
/// # Errors
/// `Reading`, or its fault.
pub fn calibration(reference: &str) -> Result<Calibration, CliError> {
    named_by("--calibration", reference)
}

/// The same of a reference that stands at `argument`.
fn named_by(argument: &'static str, reference: &str) -> Result<Calibration, CliError> {
    let argument = Some(argument);
    let calibration = match is_file(reference) {
        true => Calibration::from_toml(&text(argument, reference)?, reference),
        false => Calibration::from_name(reference),
    };
    calibration.map_err(|error| CliError::of_input(argument, error))
}

/// Whether a reference is that of a file, not a name of the catalog.
fn is_file(reference: &str) -> bool {
    reference.contains('/') || reference.ends_with(".toml")
}

/// The calibration to apply to a cluster: the given one; if none is given and the cluster has none, the default. `None` if the
/// cluster's numbers have one already: a plan's file contains calibrated numbers.
///
/// # Errors
/// Those of `calibration`.
pub fn to_apply(given: Option<&str>, cluster: &Cluster) -> Result<Option<Calibration>, CliError> {
    match (given, &cluster.calibration) {
        (None, Some(_)) => Ok(None),
        (given, _) => calibration(given.unwrap_or(DEFAULT)).map(Some),
    }
}

/// As `to_apply`, also if the cluster has a calibration of the catalog: for hardware and software that are changed.
///
/// # Errors
/// Those of `calibration`.
pub fn to_apply_again(given: Option<&str>, cluster: &Cluster) -> Result<Option<Calibration>, CliError> {
    let known = |name: &&str| catalog::names("calibrations").contains(name);
    to_apply(given.or(cluster.calibration.as_deref().filter(known)), cluster)
}

/// Calibrates hardware and software.
///
/// # Errors
/// Those of `calibration`.
pub fn calibrate(given: Option<&str>, cluster: &mut Cluster, stack: &mut Stack) -> Result<(), CliError> {
    if let Some(calibration) = to_apply(given, cluster)? {
        calibration.apply(cluster, stack);
    }
    Ok(())
}

/// The plan with calibrated hardware and software.
///
/// # Errors
/// Those of `calibration`.
pub fn calibrated(mut plan: Plan, given: Option<&str>) -> Result<Plan, CliError> {
    calibrate(given, &mut plan.cluster, &mut plan.stack)?;
    Ok(plan)
}

/// How far the forecast of a calibrated plan can be trusted.
///
/// # Errors
/// Those of `calibration`, and a deadlock of the uncalibrated plan.
pub fn confidence_of(plan: &Plan, forecast: &Forecast, given: Option<&str>) -> Result<Confidence, CliError> {
    let exposed = Seconds::from(forecast.report.mean.exposed) / Seconds::from(forecast.report.step_time);
    Ok(confidence(plan, (forecast.step_time, exposed), &of(given, &plan.cluster)?)?)
}

/// The calibration that a cluster's numbers have, with the residuals of its runs; without them if it is in a file that was not
/// given. A cluster's own may be an unknown name, which is a fault.
///
/// # Errors
/// Those of `calibration`.
pub fn of(given: Option<&str>, cluster: &Cluster) -> Result<Calibration, CliError> {
    let name = given.or(cluster.calibration.as_deref()).unwrap_or("none");
    match given {
        Some(_) => calibration(name),
        None if is_file(name) => Ok(Calibration { name: name.into(), ..Calibration::default() }),
        None => named_by("`calibration` of the cluster", name),
    }
}
