//! Lower bounds: what no partition of a candidate can beat.

use crate::candidate::Candidate;
use crate::layers::{LayerCost, LayerCosts};
use crate::verdict::Question;
use trainwright_sim::costs::Costs;
use trainwright_spec::job::Job;
use trainwright_spec::memory::{fixed_overhead, state_per_parameter};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Access, Axis, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

/// A time that no step of `candidate` is below, whichever partition and recomputation `stages` chooses for it.
/// `plan` has the candidate's choices, and no stages yet.
pub(crate) fn step_bound(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Seconds {
    let cost = layers.of(candidate);
    let shape = candidate.shape(question.job.global_batch);
    let least =
        pipeline_bound(cost.least_time(question), shape.ranks, shape.virtual_stages, shape.microbatches);
    let in_memory = match cost.blocks.as_slice() {
        [choices] => memory_pipeline_bound(candidate, plan, layers, choices),
        _ => Seconds::ZERO,
    };
    least.max(in_memory) + update_bound(plan, cost.parameters(question), costs)
}

/// The least time of a pipeline of equal blocks whose ranks recompute as much as their memory forces them to.
///
/// The smallest T with Σ_r n_r(T / m) ≥ L, found by bisection; n_r(t) is the largest number of blocks, fractions
/// allowed, that rank r can both run within t per microbatch and hold: max Σ x_c with Σ x_c t_c ≤ t and
/// Σ x_c (s + f_r a_c) ≤ M_r over its recompute choices c.
///
/// m microbatches, L blocks, t_c time and a_c kept activations of a block under choice c, s its state, f_r microbatches
/// that rank r holds in the mean of its stages, M_r its memory. Infinite if the blocks do not fit at all.
fn memory_pipeline_bound(
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    choices: &[LayerCost],
) -> Seconds {
    let cost = layers.of(candidate);
    let state = state_per_parameter(plan, Axis::Data).total();
    let lost = 1.0 + plan.stack.fragmentation.value;
    let room = plan.cluster.node.gpu.memory.value - fixed_overhead(plan);
    let microbatches = plan.microbatches() as f64;
    let last = plan.mesh.pipeline - 1;
    let peak = choices.iter().map(|choice| choice.peak).reduce(Bytes::min).unwrap_or(Bytes::ZERO);
    let in_flight = layers.in_flight(candidate);
    let stages = in_flight.by_stage.len();
    let rank = |rank: usize| {
        let ends = [(rank == 0, 0, &cost.embedding), (rank == last, stages - 1, &cost.head)];
        let mut own = Rank { time: Seconds::ZERO, memory: room, held: in_flight.mean[rank] };
        let mut largest = peak;
        for (_, stage, end) in ends.into_iter().filter(|(here, ..)| *here) {
            own.time += end.time;
            let held = in_flight.by_stage[stage] as f64;
            own.memory -= state * end.parameters as f64 + end.kept * (held * lost);
            largest = largest.max(end.peak);
        }
        own.memory -= largest * lost;
        own
    };
    let ranks = (0..plan.mesh.pipeline).map(rank);
    let blocks = plan.model.layers() as f64;
    let held_by =
        |choice: &LayerCost, rank: &Rank| state * choice.parameters as f64 + choice.kept * (rank.held * lost);
    let ways = |rank: &Rank| -> Vec<(Seconds, Bytes)> {
        choices.iter().map(|choice| (choice.time, held_by(choice, rank))).collect()
    };
    let ranks: Vec<(Rank, Vec<(Seconds, Bytes)>)> = ranks.map(|rank| (rank, ways(&rank))).collect();
    let hold = |time: Seconds| -> f64 {
        ranks.iter().map(|(rank, ways)| most_blocks(time - rank.time, rank.memory, ways)).sum()
    };
    let slowest = choices.iter().map(|choice| choice.time).fold(Seconds::ZERO, Seconds::max);
    let (mut low, mut high) = (Seconds::ZERO, slowest * blocks + cost.embedding.time + cost.head.time);
    if hold(high) < blocks {
        return Seconds::new(f64::INFINITY);
    }
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        match hold(middle) < blocks {
            true => low = middle,
            false => high = middle,
        }
    }
    low * microbatches
}

/// Halvings of the interval that holds a bound: to a millionth of it.
const BISECTIONS: usize = 20;

/// What a pipeline rank has left for blocks.
#[derive(Clone, Copy)]
struct Rank {
    /// What embedding and head take of each microbatch's time.
    time: Seconds,
    /// Memory for blocks.
    memory: Bytes,
    /// Microbatches in flight.
    held: f64,
}

/// The most blocks, fractions allowed, within a time and a memory, each block in one of several ways of (time, memory).
///
/// A linear program of two rows: an optimum uses one way, or two with both rows tight.
fn most_blocks(time: Seconds, memory: Bytes, ways: &[(Seconds, Bytes)]) -> f64 {
    if time <= Seconds::ZERO || memory <= Bytes::ZERO {
        return 0.0;
    }
    let mut most: f64 = 0.0;
    for (index, &(first_time, first_memory)) in ways.iter().enumerate() {
        most = most.max((time / first_time).min(memory / first_memory));
        for &(other_time, other_memory) in &ways[index + 1..] {
            // x a + y b = time, x c + y d = memory, in units of both limits.
            let (a, b) = (first_time / time, other_time / time);
            let (c, d) = (first_memory / memory, other_memory / memory);
            let determinant = a * d - b * c;
            let (x, y) = ((d - b) / determinant, (a - c) / determinant);
            if x >= 0.0 && y >= 0.0 && (x + y).is_finite() {
                most = most.max(x + y);
            }
        }
    }
    most
}

/// The least time of a pipeline in which one microbatch takes `work` over all ranks.
///
/// v = 1: T = W / (1 − (1 − 1/m)^p);  v > 1: T = m W / p
///
/// W work of a microbatch, p ranks, m microbatches. With one stage per rank, rank r cannot begin before the ranks
/// before it have each run their first forward, nor can the step end before they have each run a last backward after
/// its own: T ≥ m t_r + Σ_{q<r} t_q for every r. The least T over all t with Σ t = W makes every one of these an
/// equality, so that the rest W_r left after r ranks shrinks by (1 − 1/m) each: hence the formula. With several
/// stages per rank only the busiest rank's work is counted.
fn pipeline_bound(work: Seconds, ranks: usize, virtual_stages: usize, microbatches: usize) -> Seconds {
    let (p, m) = (ranks as f64, microbatches as f64);
    match virtual_stages {
        1 => work / (1.0 - (1.0 - 1.0 / m).powf(p)),
        _ => work * (m / p),
    }
}

/// The least time of gradient norm, clipping and optimizer after the last backward, `parameters` those of all
/// pipeline ranks.
///
/// With gradient clipping all pipeline ranks wait for each other before it, so that the one with the most parameters
/// adds its whole update, and it has at least the mean. Without, a rank may update while others still run.
pub(crate) fn update_bound(plan: &Plan, parameters: f64, costs: &impl Costs) -> Seconds {
    let Job { gradient_clipping, .. } = plan.job;
    if !gradient_clipping && plan.mesh.pipeline > 1 {
        return Seconds::ZERO;
    }
    let shards =
        if plan.shards_optimizer() { plan.servers().unwrap_or(plan.mesh.shard()) as f64 } else { 1.0 };
    let updated = parameters / plan.mesh.pipeline as f64 / shards;
    let gradient = plan.state_bytes().gradient;
    let (read, written) = plan.state_bytes().update_traffic();
    let streaming = |access, read: Bytes, written: Bytes| {
        costs.kernel(&Kernel::Streaming { access, read: read * updated, written: written * updated })
    };
    let update = streaming(Access::Elementwise, read, written);
    match gradient_clipping {
        true => {
            let norm = streaming(Access::Reduction, gradient, Bytes::ZERO);
            norm + streaming(Access::Elementwise, gradient, gradient) + update
        }
        false => update,
    }
}

/// The memory that some rank of `candidate` needs at least: weights, gradients and optimizer state of its share of
/// the model, of which there are `parameters` on all pipeline ranks, libraries and communicators. Activations come on
/// top.
pub(crate) fn memory_bound(plan: &Plan, parameters: f64) -> Bytes {
    let share = parameters / plan.mesh.pipeline as f64;
    state_per_parameter(plan, Axis::Data).total() * share + fixed_overhead(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_mixed_to_use_both_time_and_memory() {
        // Fast blocks take 1 s and 4 B, slow ones 2 s and 1 B.
        let ways = [(Seconds::new(1.0), Bytes::new(4.0)), (Seconds::new(2.0), Bytes::new(1.0))];
        let check = |time: f64, memory: f64, expected: f64| {
            let most = most_blocks(Seconds::new(time), Bytes::new(memory), &ways);
            assert!((most - expected).abs() < 1e-12, "{most}, not {expected}");
        };
        check(10.0, 1000.0, 10.0); // memory enough for ten fast ones
        check(1000.0, 10.0, 10.0); // time enough for ten slow ones
        check(9.0, 15.0, 6.0); // three of each: 3 + 6 s, 12 + 3 B
        check(0.0, 10.0, 0.0);
    }

    #[test]
    fn the_pipeline_bound_is_met_by_the_best_times() {
        let check = |work: f64, ranks, virtual_stages, microbatches, expected: f64| {
            let bound = pipeline_bound(Seconds::new(work), ranks, virtual_stages, microbatches).get();
            assert!((bound - expected).abs() < 1e-9 * expected, "{bound}, not {expected}");
        };
        // One rank: m times the work.
        check(3.0, 1, 1, 8, 24.0);
        // One microbatch: the work itself, however many ranks.
        check(3.0, 4, 1, 1, 3.0);
        // Two ranks, two microbatches, t = (2, 1): 2 · 2 = 4 and 2 · 1 + 2 = 4.
        check(3.0, 2, 1, 2, 4.0);
        // Several stages per rank: the busiest rank's share.
        check(4.0, 4, 2, 8, 8.0);
    }
}
