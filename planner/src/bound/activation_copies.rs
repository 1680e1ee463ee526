//! What it takes to copy activations off the GPUs and back.

use crate::candidate::Candidate;
use crate::cost::CostModel;
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::CopyDirection;
use trainwright_spec::units::{Bytes, Seconds};

/// The least time of a step whose activations leave the GPUs and come back.
///
/// T = m / p max_{λ, μ ∈ {0, ½, 1}} ( L min_c (λ f_c + (1 − λ) o_c + μ b_c + (1 − μ) i_c) + S (λ o + (1 − λ) f + μ i + (1 − μ) b) )
///
/// m microbatches, p ranks, L blocks of the longest run, S stages that have some; f_c and b_c forward and backward of a block under recompute
/// choice c, o_c and i_c the copies of what it keeps, f, b, o and i the least of these over all c. A pass begins when the copies
/// of those before it have left, and fetches nothing before it begins: forward of n blocks takes both Σ f_c and the last
/// one's copy, and the first block and Σ o_c, so any mean of the two; backward likewise.
pub(super) fn copy_bound(model: &CostModel, candidate: &Candidate, plan: &Plan) -> Seconds {
    let (Some(place), None) = (plan.offload.activations, plan.offload.activation_blocks) else {
        return Seconds::ZERO;
    };
    let bytes = Bytes::new(1e15);
    let rate = |direction| bytes / least_on_any(model, QueryWork::Copy { direction, place, bytes }).get();
    let (out_rate, back_rate) = (rate(CopyDirection::ToHost), rate(CopyDirection::FromHost));
    // Of each choice: forward, its copy, backward, its copy.
    let (longest, blocks) = model.longest_run();
    let choices = model.by_kind(candidate).iter().flat_map(|cost| &cost.blocks[longest]);
    let parts: Vec<[f64; 4]> = choices
        .map(|choice| {
            let backward = choice.time - choice.forward;
            [choice.forward.get(), choice.kept / out_rate, backward.get(), choice.kept / back_rate]
        })
        .collect();
    let least: [f64; 4] =
        std::array::from_fn(|part| parts.iter().map(|of| of[part]).fold(f64::INFINITY, f64::min));
    let shape = candidate.shape(model.question.job.global_batch);
    let blocks = blocks as f64;
    // The ends may have no block.
    let stages = (shape.stages().saturating_sub(2).max(1) as f64).min(blocks);
    let means = [0.0, 0.5, 1.0];
    let pairs = means.iter().flat_map(|forward| means.iter().map(move |backward| (*forward, *backward)));
    let of_mean = |(l, m): (f64, f64)| {
        let mean = |[f, o, b, i]: [f64; 4]| l * f + (1.0 - l) * o + m * b + (1.0 - m) * i;
        let of_block = parts.iter().map(|of| mean(*of)).fold(f64::INFINITY, f64::min);
        let [f, o, b, i] = least;
        blocks * of_block + stages * mean([o, f, i, b])
    };
    let most = pairs.map(of_mean).fold(0.0, f64::max);
    Seconds::new(most * shape.microbatches as f64 / shape.ranks as f64)
}

/// The least time of some work over the kinds of nodes.
fn least_on_any(model: &CostModel, work: QueryWork) -> Seconds {
    let cluster = &model.question.cluster;
    let firsts = (0..=cluster.others.len()).map(|kind| cluster.first_of(kind));
    let times = firsts.map(|rank| model.costs.cost(&Query { rank, op: None, work }).time);
    times.reduce(Seconds::min).expect("a cluster has a kind of nodes")
}
