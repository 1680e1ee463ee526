//! Interleaved 1F1B: several smaller stages on each rank.

use super::one_f_one_b::one_forward_one_backward;
use super::{Action, ActionKind, ActionLists, PipelineShape, Schedule};

/// Depth-first interleaving as in Megatron-LM: microbatches go through the rank's stages in groups of p.
pub struct Interleaved;

impl Schedule for Interleaved {
    fn name(&self) -> &str {
        "interleaved"
    }

    fn summary(&self) -> &str {
        "1F1B with v stages per rank: 1/v of the bubble for v times the messages; m must divide by p"
    }

    fn bubble(&self) -> &str {
        "(p - 1) / (m v)"
    }

    fn source(&self) -> &str {
        "Narayanan et al. 2021, arXiv 2104.04473, section 2.2"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        check(self.name(), shape)
    }

    fn searched(&self) -> bool {
        true
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let PipelineShape { ranks: p, virtual_stages: v, microbatches: m } = shape;
        let of_rank = |rank| {
            let warm_up = if m == p { m * v } else { 2 * (p - rank - 1) + (v - 1) * p };
            one_forward_one_backward(m * v, warm_up, passes(rank, shape, &vec![p; m / p]))
        };
        (0..p).map(of_rank).collect()
    }

    /// (p − 1) / (m v).
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / (shape.microbatches * shape.virtual_stages) as f64
    }
}

/// Refuses shapes that groups of p microbatches cannot pass in turn.
pub(super) fn check(name: &str, shape: PipelineShape) -> Result<(), String> {
    needs_several_stages(name, shape)?;
    let PipelineShape { ranks, microbatches, .. } = shape;
    match microbatches.is_multiple_of(ranks) {
        true => Ok(()),
        false => Err(format!(
            "schedule `{name}` needs a number of microbatches that divides by the {ranks} pipeline ranks, not \
             {microbatches}"
        )),
    }
}

/// Refuses shapes with nothing to interleave.
pub(super) fn needs_several_stages(name: &str, shape: PipelineShape) -> Result<(), String> {
    if shape.ranks < 2 {
        return Err(format!("schedule `{name}` needs a pipeline of at least 2 ranks"));
    }
    match shape.virtual_stages {
        v if v >= 2 => Ok(()),
        v => Err(format!("schedule `{name}` needs at least 2 virtual stages, not {v}")),
    }
}

/// The k-th pass of a kind on `rank` when the microbatches go through its stages in groups of these sizes: each
/// group passes all stages before the next one begins.
pub(super) fn passes(
    rank: usize,
    shape: PipelineShape,
    groups: &[usize],
) -> impl Fn(ActionKind, usize) -> Action + use<> {
    let PipelineShape { ranks: p, virtual_stages: v, .. } = shape;
    let group = move |group: (usize, usize)| {
        let (first, size) = group;
        (0..v).flat_map(move |chunk| (0..size).map(move |microbatch| (chunk, first + microbatch)))
    };
    let firsts = groups.iter().scan(0, |next, size| Some(std::mem::replace(next, *next + size)));
    let order: Vec<(usize, usize)> = firsts.zip(groups.iter().copied()).flat_map(group).collect();
    move |kind, k| {
        let (chunk, microbatch) = order[k];
        let chunk = if kind == ActionKind::Forward { chunk } else { v - 1 - chunk };
        Action { stage: chunk * p + rank, kind, microbatch }
    }
}
