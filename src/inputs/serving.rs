//! The question of the arguments of `serve-plan`.

use super::requests;
use crate::arguments::{Least, ServePlanArguments};
use crate::error::{CliError, refuse};
use std::collections::BTreeSet;
use trainwright_planner::serving::{Kind, LatencyLimits, Objective, ServedFormats, ServingQuestion, Traffic};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::serving::Engine;
use trainwright_whatif::price::list_price;

/// The question that the arguments ask, on the nodes of some clusters.
///
/// # Errors
/// The first argument that is invalid, alone or with the others.
pub fn question(arguments: &ServePlanArguments, clusters: &[Cluster]) -> Result<ServingQuestion, CliError> {
    let model = super::models::mapped(&arguments.model, &arguments.map)?;
    requests::is_decoder(&arguments.model, &model)?;
    requests::has_experts(arguments.expert_weights, &model)?;
    let kinds: Vec<Kind> =
        clusters.iter().map(|cluster| kind(arguments, cluster)).collect::<Result<_, CliError>>()?;
    let engine =
        |name: &String| Engine::from_name(name).map_err(|error| CliError::of_input(Some("--engine"), error));
    let formats = arguments.weights.iter().map(|weights| ServedFormats {
        weights: weights.name.into(),
        expert_weights: arguments.expert_weights.unwrap_or(*weights).name.into(),
        cache: arguments.cache.name.into(),
    });
    let mut formats: Vec<ServedFormats> = formats.collect();
    let mut seen = BTreeSet::new();
    formats.retain(|formats| seen.insert(formats.weights.clone()));
    let traffic = match &arguments.trace {
        Some(path) => {
            let requests = requests::trace(path)?.requests;
            requests::has_gaps(path, &requests)?;
            Traffic::Trace(requests)
        }
        None => {
            let (input, output, cached) = (arguments.input, arguments.output, arguments.cached);
            requests::cached_are_fewer(cached, input)?;
            Traffic::Alike { input, output, cached }
        }
    };
    let longest = match &traffic {
        Traffic::Trace(requests) => requests.iter().map(|request| request.input + request.output).max(),
        Traffic::Alike { input, output, .. } => Some(input + output),
    };
    requests::have_positions(&arguments.model, &model, longest.unwrap_or(0))?;
    Ok(ServingQuestion {
        model,
        kinds,
        engines: arguments.engines.iter().map(engine).collect::<Result<_, CliError>>()?,
        formats,
        traffic,
        rate: arguments.rate,
        limits: LatencyLimits { ttft: arguments.ttft, tpot: arguments.tpot, part: arguments.percentile },
        apart: arguments.apart,
        objective: match arguments.least {
            Least::Gpus => Objective::Gpus,
            Least::Cost => Objective::Cost,
        },
    })
}

/// Nodes of a kind with their price.
fn kind(arguments: &ServePlanArguments, cluster: &Cluster) -> Result<Kind, CliError> {
    let listed = || list_price(cluster).map(|price| price.per_gpu.get());
    let price = arguments.price.or_else(listed);
    if price.is_none() && arguments.least == Least::Cost {
        let allowed = format!("no price list of the catalog has {}: give `--price`", cluster.node.gpu.name);
        return Err(refuse("--least", "cost", allowed));
    }
    Ok(Kind { cluster: cluster.clone(), price })
}
