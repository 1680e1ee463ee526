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
/// Tries one node, two, four, … up to `most_gpus`, and then eighths between the largest that are too slow and the smallest
/// that are fast enough. Numbers between those, and numbers above one that is fast enough, are not tried: more nodes
/// are not always faster, since the batch must divide among them.
pub fn gpus_needed(base: &Scenario, limit: Seconds, most_gpus: usize, watch: Watch) -> GpusNeeded {
    let of_node = base.cluster().node.gpus.value;
    let most = (most_gpus / of_node).max(1);
    let at = |nodes: usize| point(base, &[("nodes", nodes.to_string())]);
    let doubled = std::iter::successors(Some(1usize), |nodes| nodes.checked_mul(2));
    let coarse: Vec<usize> = doubled.take_while(|nodes| *nodes <= most).collect();
    let mut all = answers(coarse.iter().map(|nodes| at(*nodes)).collect(), watch);
    let in_time = |answer: &Answer| answer.wanted_run().is_some_and(|run| run.time <= limit);
    if let Some(first) = all.iter().position(in_time) {
        let high = coarse[first];
        let low = high / 2;
        let step = (low / BETWEEN).max(1);
        let fine = (1..).map(|index| low + index * step).take_while(|nodes| *nodes < high);
        all.extend(answers(fine.filter(|nodes| *nodes > 0).map(at).collect(), watch));
    }
    let answers = sorted(all, |answer| answer.point[0].parse().unwrap_or_default());
    let fewest = answers.iter().position(in_time);
    GpusNeeded { answers, fewest }
}
