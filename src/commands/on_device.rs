//! `calibrate` and `validate` where ranks do not compute on the cores: the plan's cluster says what the device is, runs say
//! what its ops take.

use super::calibrate::{TABLE, write};
use super::validate::{measure, typical};
use crate::arguments::{CalibrateArguments, ValidateArguments};
use crate::error::{CliError, Outcome};
use crate::render::validate::Validated;
use crate::{inputs, output};
use std::path::Path;
use trainwright_executor::measure_ops;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::plan::Plan;
use trainwright_traces::comparison::Comparison;

/// Writes a table of every op of some plans, with the names that their clusters give the device.
///
/// # Errors
/// No plan, a device that cannot be used, a plan that it does not run, and files that cannot be written.
pub fn calibrate(plans: &[Plan], arguments: &CalibrateArguments) -> Result<Outcome, CliError> {
    if plans.is_empty() {
        let allowed = "on this device the shapes are those of plans: name some".into();
        return Err(CliError::Argument { argument: "--plan".into(), value: "missing".into(), allowed });
    }
    let mut table = String::new();
    for plan in plans {
        let measured = measure_ops(std::slice::from_ref(plan), arguments.device)?;
        let program = format!("trainwright {}, {}", env!("CARGO_PKG_VERSION"), measured.versions);
        let text = measured.profile.to_csv(&plan.cluster.node.gpu.name, [&measured.date, &program]);
        let rows =
            if table.is_empty() { &text[..] } else { text.split_once('\n').map_or("", |(_, rows)| rows) };
        table += rows;
    }
    let folder = Path::new(&arguments.out);
    write(folder, TABLE, &table)?;
    output::print(&format!("{}: {} measured ops\n", folder.display(), table.lines().count() - 1))?;
    Ok(Outcome::Done)
}

/// A plan's forecast with the device's times beside what the plan does on it.
///
/// # Errors
/// A device that cannot be used, a plan that it does not run, a rank that stops, and a table that cannot be read.
pub fn validate(arguments: &ValidateArguments, plan: &Plan) -> Result<Validated, CliError> {
    let mut plan = arguments.device.own_stack(plan)?;
    match &arguments.profile {
        Some(folder) => {
            let table = Path::new(folder).join(TABLE).display().to_string();
            let text = inputs::text(Some("--profile"), &table)?;
            let cluster = plan.cluster.clone().with_device_profile(&text, &table);
            plan.cluster = cluster.map_err(|error| CliError::of_input(Some("--profile"), error))?;
        }
        None => {
            let measured = measure_ops(std::slice::from_ref(&plan), arguments.device)?;
            plan.cluster.node.gpu.profile = Some(measured.profile);
        }
    }
    let run = measure(arguments, &plan, None)?;
    let (steps, times) = run.expect("a run in one process has steps");
    let (_, expected) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
    let compared = Comparison::new(&expected, &steps, &times);
    let measured = typical(&steps).clone();
    Ok(Validated { name: String::new(), plan, compared, expected, measured })
}
