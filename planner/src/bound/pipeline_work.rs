//! Closed forms: what the work of all layers takes on the ranks of a pipeline.

use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, ModelCost};
use crate::question::Question;
use trainwright_spec::units::Seconds;

/// What rounding may take from a bound: the simulator's clock is in whole picoseconds.
pub(super) const ROUNDING: f64 = 1e-6;

/// A time that no step of a candidate with this layout is below.
///
/// T = max(m W / p, m ⌈L / p⌉ t)
///
/// m microbatches of W work on p ranks, L blocks of t at least: some rank has its share of the work, and whole blocks. `times`
/// are what a block takes at least, by run.
pub(super) fn layout_bound(question: &Question, layout: &Candidate, times: &[Seconds]) -> Seconds {
    let shape = layout.shape(question.job.global_batch);
    let runs = question.model.blocks.iter().zip(times);
    let work: Seconds = runs.map(|(run, time)| *time * run.count as f64).sum();
    let least = times.iter().copied().reduce(Seconds::min).unwrap_or(Seconds::ZERO);
    let blocks = question.model.layers().div_ceil(shape.ranks) as f64;
    (work * (1.0 / shape.ranks as f64)).max(least * blocks) * (shape.microbatches as f64 * (1.0 - ROUNDING))
}

/// The least time of a candidate's pipeline.
///
/// One stage per rank, r = 0 … p − 1: T ≥ m t_r + Σ_{q<r} φ t_q, which `ramped` minimises over all t with Σ t = W.
/// Several: T ≥ m t_r + e + (r − 1) τ for r > 0, whose mean over the ranks is (m W + e (p − 1) + τ (p − 1) (p − 2) / 2) / p.
///
/// Rank r cannot begin before the ranks before it have each run a forward, nor, where backward is not in halves, can the
/// step end before they have each run a backward after its last: φ = 1 then, and else the part of the work that is forward.
/// τ is what the first stage of a rank takes of that at least, one block's, but e the embedding's on the first rank, which may have
/// nothing else there. With two copies of the stages, or steps that
/// follow each other without a gap, only the work counts. In any case some rank has ⌈c L / p⌉ blocks of c copies, of
/// which each runs m / c microbatches. Where passes may run jointly, work is what no other pass hides, and T ≥ m C / p: the
/// collectives inside layers, C for a microbatch, share a stream.
pub(super) fn pipeline_bound(model: &CostModel, candidate: &Candidate) -> Seconds {
    let (question, cost) = (model.question, model.of(candidate));
    let kind = model.pipelines.kind(candidate);
    let shape = candidate.shape(question.job.global_batch);
    let (p, m) = (shape.ranks as f64, shape.microbatches as f64);
    let work = cost.least_time(question);
    let copies = kind.copies as f64;
    let blocks = (question.model.layers() * kind.copies).div_ceil(shape.ranks) as f64;
    let most_blocks = cost.least_block(|block| block.time) * (blocks * m / copies);
    let spread = match (kind.ramps, shape.virtual_stages) {
        (false, _) => work * (m / p),
        (true, 1) => {
            let before = if kind.halves { least_forward_part(model, candidate) } else { 1.0 };
            ramped(work, shape.ranks, shape.microbatches, before)
        }
        (true, _) => {
            let part = |layer: &LayerCost| if kind.halves { layer.forward } else { layer.time };
            let (first, others) = (part(&cost.embedding), cost.least_block(part));
            work * (m / p) + first * ((p - 1.0) / p) + others * ((p - 1.0) * (p - 2.0) / (2.0 * p))
        }
    };
    let exchanged = if kind.joint { cost.least_exchanged(question) * (m / p) } else { Seconds::ZERO };
    spread.max(most_blocks).max(exchanged)
}

/// The least part of a layer's time that is forward, on any kind of node.
fn least_forward_part(model: &CostModel, candidate: &Candidate) -> f64 {
    let layers = model.by_kind(candidate).iter().flat_map(ModelCost::layers);
    let timed = layers.filter(|layer| layer.time > Seconds::ZERO);
    timed.map(|layer| layer.forward / layer.time).fold(1.0, f64::min)
}

/// The least time of a pipeline in which one microbatch takes `work` over all ranks, of which the ranks after one wait for
/// the part `before` before they can begin, or have to be waited for after they end.
///
/// T = W φ / (1 − (1 − φ/m)^p)
///
/// W work of a microbatch, p ranks, m microbatches, φ that part. T ≥ m t_r + φ Σ_{q<r} t_q for every r. The least T over
/// all t with Σ t = W makes every one of these an equality, so that the rest T / φ − Σ t left after r ranks shrinks by
/// 1 − φ/m each: hence the formula.
fn ramped(work: Seconds, ranks: usize, microbatches: usize, before: f64) -> Seconds {
    let (p, m) = (ranks as f64, microbatches as f64);
    match before > 1e-6 {
        true => work * (before / (1.0 - libm::pow(1.0 - before / m, p))),
        false => work * (m / p),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipeline_bound_is_met_by_the_best_times() {
        let check = |work: f64, ranks, microbatches, before: f64, expected: f64| {
            let bound = ramped(Seconds::new(work), ranks, microbatches, before).get();
            assert!((bound - expected).abs() < 1e-9 * expected, "{bound}, not {expected}");
        };
        // One rank: m times the work.
        check(3.0, 1, 8, 1.0, 24.0);
        // One microbatch: the work itself, however many ranks.
        check(3.0, 4, 1, 1.0, 3.0);
        // Two ranks, two microbatches, t = (2, 1): 2 · 2 = 4 and 2 · 1 + 2 = 4.
        check(3.0, 2, 2, 1.0, 4.0);
        // Half of it before, t = (4, 3): 2 · 4 = 8 and 2 · 3 + 4 / 2 = 8.
        check(7.0, 2, 2, 0.5, 8.0);
        // None of it: the busiest rank's share.
        check(4.0, 4, 8, 0.0, 8.0);
    }
}
