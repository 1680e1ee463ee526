//! Collectives timed step by step on the cluster's links, by the algorithms that have a list of steps.

use crate::error::CliError;
use crate::inputs::network::{ByStepsQuestion, Sweep};
use crate::render::network::{self as page, BySteps, How, Row};
use trainwright_sim::network::Placement;
use trainwright_sim::network::steps::{Groups, StepsError};
use trainwright_sim::network::topology::Topology;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::{ALGORITHMS, Algorithm};

/// The forecast of each size.
///
/// # Errors
/// `Argument` if the algorithm cannot do the collective, or not on this cluster.
pub(super) fn rows(
    question: &ByStepsQuestion,
    sweep: &Sweep,
    cluster: &Cluster,
    topology: &Topology,
) -> Result<(Vec<Row>, BySteps), CliError> {
    let algorithm = question.algorithm;
    let groups = question.groups(sweep, cluster)?;
    let per_node = per_node(sweep);
    let simulated = Groups { algorithm, kind: sweep.collective, ranks: &groups, per_node };
    let refuse = |allowed: String| crate::error::refuse("--algorithm", algorithm.name(), allowed);
    let lists = simulated.lists(cluster, topology).map_err(|error| match error {
        StepsError::NoReduction { .. } | StepsError::NoSwitch { .. } => {
            refuse(format!("{error}; {}", others(sweep, cluster, topology)))
        }
        error => refuse(error.to_string()),
    })?;
    let lists = lists.ok_or_else(|| refuse(others(sweep, cluster, topology)))?;
    let placement = Placement::new(&sweep.ranks, cluster);
    let row = |bytes| {
        let timed = lists.time(bytes);
        let how = How::Steps { algorithm: algorithm.name(), chunks: timed.pieces };
        let compared = super::compared(sweep, &placement, bytes, |_| Some(timed.time));
        Row { bytes, time: timed.time, how, compared }
    };
    let by_steps = BySteps { groups: groups.len(), fabric_adds: lists.needs_fabric_to_add() };
    Ok((sweep.sizes.iter().copied().map(row).collect(), by_steps))
}

/// The algorithms that can do the collective over this group on this cluster, in words.
fn others(sweep: &Sweep, cluster: &Cluster, topology: &Topology) -> String {
    let group = page::group(sweep, page::nodes(sweep, cluster));
    let able = able(sweep, cluster, topology).join(", ");
    format!("step by step {} over {group} can be done by {able}", sweep.collective)
}

/// The algorithms that can do a sweep's collective on the cluster.
pub(super) fn able(sweep: &Sweep, cluster: &Cluster, topology: &Topology) -> Vec<&'static str> {
    let (ranks, per_node) = ([sweep.ranks.clone()], per_node(sweep));
    let does = |algorithm: &&&dyn Algorithm| {
        let group = Groups { algorithm: **algorithm, kind: sweep.collective, ranks: &ranks, per_node };
        group.is_possible(cluster, topology)
    };
    ALGORITHMS.iter().filter(does).map(|algorithm| algorithm.name()).collect()
}

/// Ranks on each node of the group, 1 where they differ.
fn per_node(sweep: &Sweep) -> usize {
    sweep.shape.map_or(1, |shape| shape.ranks_per_node)
}
