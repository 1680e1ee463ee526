//! Arguments of `network --by-steps`.

use super::Sweep;
use crate::arguments::ForcedArguments;
use crate::error::{CliError, refuse};
use crate::render::words::count;
use std::fmt;
use trainwright_sim::network;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::{ALGORITHMS, Algorithm};

/// An algorithm whose list of steps is timed.
pub struct ByStepsQuestion {
    /// The algorithm.
    pub algorithm: &'static dyn Algorithm,
    extent: Extent,
}

/// The groups that work at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    One,
    SideBySide,
}

impl fmt::Debug for ByStepsQuestion {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ByStepsQuestion").field("algorithm", &self.algorithm.name()).finish_non_exhaustive()
    }
}

/// The algorithm to time step by step: with `--by-steps`, or if NCCL has none of its name.
pub(super) fn question(arguments: &ForcedArguments) -> Result<Option<ByStepsQuestion>, CliError> {
    let Some(name) = arguments.algorithm else { return Ok(None) };
    let is_nccl = network::ALGORITHMS.iter().any(|algorithm| algorithm.name() == name);
    if is_nccl && !arguments.by_steps && !arguments.side_by_side {
        return Ok(None);
    }
    let Some(algorithm) = ALGORITHMS.iter().find(|algorithm| algorithm.name() == name) else {
        let names: Vec<&str> = ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect();
        let allowed = format!("NCCL alone has it; step by step there are {}", names.join(", "));
        return Err(refuse("--algorithm", name, allowed));
    };
    let of_nccl = [
        ("--protocol", arguments.protocol.map(|protocol| protocol.to_string())),
        ("--channels", arguments.channels.map(|channels| channels.to_string())),
    ];
    if let Some((argument, Some(value))) = of_nccl.into_iter().find(|(_, value)| value.is_some()) {
        let allowed = format!("{name} is timed step by step, and that choice is of NCCL's algorithms");
        return Err(refuse(argument, value, allowed));
    }
    let extent = if arguments.side_by_side { Extent::SideBySide } else { Extent::One };
    Ok(Some(ByStepsQuestion { algorithm: *algorithm, extent }))
}

impl ByStepsQuestion {
    /// The group of a sweep, or all of its shape that fill the cluster: they follow each other through the places of
    /// the nodes, then through the nodes.
    ///
    /// # Errors
    /// Where groups of that shape leave GPUs over.
    pub fn groups(&self, sweep: &Sweep, cluster: &Cluster) -> Result<Vec<Vec<usize>>, CliError> {
        if self.extent == Extent::One {
            return Ok(vec![sweep.ranks.clone()]);
        }
        let (all, each) = (cluster.nodes, cluster.node.gpus.value);
        let fits = sweep
            .shape
            .filter(|shape| all.is_multiple_of(shape.nodes) && each.is_multiple_of(shape.ranks_per_node));
        let Some(shape) = fits else {
            let group = match sweep.shape {
                Some(shape) => format!(
                    "{} with {} each",
                    count(shape.nodes, "node"),
                    count(shape.ranks_per_node, "rank")
                ),
                None => "nodes with unequal numbers of ranks".into(),
            };
            let allowed = format!(
                "such groups do not fill {}, which has {} of {}",
                cluster.name,
                count(all, "node"),
                count(each, "GPU")
            );
            return Err(refuse("--side-by-side", format!("asked of {group}"), allowed));
        };
        let (nodes, ranks) = (shape.nodes, shape.ranks_per_node);
        let group = |first_node: usize, first: usize| {
            (first_node..first_node + nodes)
                .flat_map(|node| (first..first + ranks).map(move |place| node * each + place))
                .collect()
        };
        let firsts =
            (0..all).step_by(nodes).flat_map(|node| (0..each).step_by(ranks).map(move |place| (node, place)));
        Ok(firsts.map(|(node, place)| group(node, place)).collect())
    }
}
