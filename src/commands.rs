//! One file per command: what it calls, in which order, and how it ends.

pub mod plan;
pub mod show;
pub mod simulate;

use crate::error::CliError;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Forecast, forecast};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Picoseconds;
use trainwright_traces::timeline::Timeline;

/// A simulated step of a plan on its cluster.
fn simulated(plan: &Plan) -> Result<(Forecast, Timeline), CliError> {
    let (forecast, timeline) = forecast(plan, &ClusterCosts { cluster: &plan.cluster })?;
    match timeline.duration {
        Picoseconds::END => Err(CliError::TooLong(timeline.duration)),
        _ => Ok((forecast, timeline)),
    }
}
