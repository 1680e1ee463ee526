//! Scaling curves: the same work on more GPUs, or as much work for each GPU on more of them.

use super::point;
use crate::answer::Answer;
use crate::scenario::Scenario;
use crate::sweep::{Watch, answers};

/// The fixed quantity as GPUs are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// The global batch.
    Strong,
    /// The global batch for each GPU.
    Weak,
}

/// The scenario on its nodes, on twice as many, … up to `most_gpus`; each planned anew. The last point is `most_gpus`
/// themselves, in whole nodes.
pub fn scaling(base: &Scenario, kind: Scaling, most_gpus: usize, watch: Watch) -> Vec<Answer> {
    let cluster = base.cluster();
    let (first, most) = (cluster.nodes, most_gpus / cluster.node.gpus.value);
    let doubled = std::iter::successors(Some(first), |nodes| nodes.checked_mul(2));
    let mut nodes: Vec<usize> = doubled.take_while(|nodes| *nodes < most).collect();
    if most > first || nodes.is_empty() {
        nodes.push(most.max(first));
    }
    let points = nodes.into_iter().map(|nodes| {
        let batch = match kind {
            Scaling::Strong => base.job().global_batch,
            Scaling::Weak => base.job().global_batch * nodes / first,
        };
        point(base, &[("nodes", nodes.to_string()), ("global-batch", batch.to_string())])
    });
    answers(points.collect(), watch)
}
