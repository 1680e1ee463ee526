//! How many GPUs train a number of tokens within a time.

use super::{BETWEEN, point, sorted};
use crate::answer::Answer;
use crate::scenario::Scenario;
use crate::sweep::{Watch, answers};
use trainwright_spec::units::Seconds;

/// The numbers of nodes that were tried, and the fewest that are fast enough.
#[derive(Debug, Clone, PartialEq)]
pub struct GpusNeeded {
    /// By number of nodes; the point's value is that number.
    pub answers: Vec<Answer>,
    /// Index of the fewest nodes that are fast enough; `None` if no number that was tried is.
    pub fewest: Option<usize>,
}

/// The fewest nodes that train the scenario's tokens within `limit`.
///
/// Tries one node, two, four, … up to `most_gpus`; then eighths between the fewest that are fast enough and the next fewer that
/// were tried, again until no node is between them or none of the eighths has a plan. More nodes are not always faster, since the
/// batch must divide among them: numbers that were not tried may be fast enough, too.
pub fn gpus_needed(base: &Scenario, limit: Seconds, most_gpus: usize, watch: Watch) -> GpusNeeded {
    let of_node = base.cluster().node.gpus.value;
    let most = (most_gpus / of_node).max(1);
    let at = |nodes: usize| point(base, &[("nodes", nodes.to_string())]);
    let doubled = std::iter::successors(Some(1usize), |nodes| nodes.checked_mul(2));
    let coarse: Vec<usize> = doubled.take_while(|nodes| *nodes <= most).collect();
    let mut all = answers(coarse.iter().map(|nodes| at(*nodes)).collect(), watch);
    let in_time = |answer: &Answer| answer.wanted_run().is_some_and(|run| run.time <= limit);
    let mut between = all.iter().position(in_time).map(|first| [coarse[first] / 2, coarse[first]]);
    while let Some([low, high]) = between.filter(|[low, high]| high - low > 1) {
        let step = ((high - low) / BETWEEN).max(1);
        let fine: Vec<usize> =
            (1..).map(|index| low + index * step).take_while(|nodes| *nodes < high).collect();
        let tried = answers(fine.iter().copied().map(at).collect(), watch);
        let first = tried.iter().position(in_time).unwrap_or(fine.len());
        let before = first.checked_sub(1).map_or(low, |last| fine[last]);
        let planned = tried.iter().any(|answer| answer.outcome.is_ok());
        between = planned.then(|| [before, fine.get(first).copied().unwrap_or(high)]);
        all.extend(tried);
    }
    let answers = sorted(all, |answer| answer.point[0].parse().unwrap_or_default());
    let fewest = answers.iter().position(in_time);
    GpusNeeded { answers, fewest }
}
