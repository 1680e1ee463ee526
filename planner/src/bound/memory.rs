//! What memory makes of a candidate: whether its blocks fit at all, and how much ranks must compute again.

use super::{Ordered, ROUNDING, gpu_state};
use crate::candidate::Candidate;
use crate::layers::{LayerCost, LayerCosts, Parameters};
use crate::question::Question;
use crate::stages::Moment;
use trainwright_spec::data::Divided;
use trainwright_spec::memory::fixed_overhead;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};

/// The least time of a pipeline of equal blocks whose ranks recompute as much as their memory forces them to.
///
/// The smallest T with Σ_r n_r(T / m) ≥ L, and in which the least work of such blocks is done in the schedule's order, found
/// by bisection; n_r(t) is the largest number of blocks, fractions
/// allowed, that rank r can both run within t per microbatch and hold: max Σ x_c with Σ x_c t_c ≤ t and
/// Σ x_c (s + f_r a_c) ≤ M_r over its recompute choices c.
///
/// m microbatches, L blocks of the model's longest run, t_c time and a_c kept activations of a block under choice c, s
/// its state, f_r microbatches that the stages of rank r hold at least, M_r its memory. Infinite if the blocks do not
/// fit at all; nothing for two copies of the stages.
pub(super) fn memory_pipeline_bound(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    ordered: Option<&Ordered>,
) -> Seconds {
    let (cost, kind) = (layers.of(candidate), layers.kind(candidate));
    if is_crowded(question, candidate, plan, layers) {
        return Seconds::new(f64::INFINITY);
    }
    let runs = question.model.blocks.iter().zip(&cost.blocks);
    let Some((run, choices)) = runs.max_by_key(|(run, _)| run.count).filter(|_| kind.copies == 1) else {
        return Seconds::ZERO;
    };
    let state = |layer: &LayerCost| gpu_state(plan, Parameters::of(layer));
    let lost = 1.0 + plan.stack.fragmentation.value;
    let overhead = fixed_overhead(plan);
    let by_kind = layers.by_kind(candidate);
    let longest = question.model.blocks.iter().position(|other| std::ptr::eq(other, run)).unwrap_or(0);
    let microbatches = plan.microbatches() as f64;
    // Copies of activations leave but for a block's.
    let stays = if plan.offload.activations.is_some() { 0.0 } else { lost };
    // Gathered weights and gradients that are not reduced may stand where activations have been; halves of backward have
    // other peaks.
    let apart = kind.halves || plan.divides(Divided::Weights) || plan.shards_gradients();
    let peak =
        cost.blocks.iter().flatten().map(|choice| choice.peak).reduce(Bytes::min).unwrap_or(Bytes::ZERO);
    let in_flight = layers.in_flight(candidate);
    let (schedule, shape) = (candidate.schedule(), candidate.shape(question.job.global_batch));
    let last = shape.stages() - 1;
    let rank = |rank: usize| {
        let kind = plan.kind(rank);
        let cost = &by_kind[kind];
        let ends = [(0, &cost.embedding), (last, cost.head_of(candidate))];
        let room = plan.cluster.node_of(kind).gpu.memory.value - overhead;
        let mut own = Rank { kind, time: Seconds::ZERO, memory: room, held: in_flight.least[rank] };
        let mut largest = if apart { Bytes::ZERO } else { peak };
        for (stage, end) in ends.into_iter().filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank) {
            own.time += end.time;
            own.memory -= state(end) + end.kept * (in_flight.by_stage[stage] as f64 * lost);
            if !apart {
                largest = largest.max(end.peak);
            }
        }
        own.memory -= largest * lost;
        own
    };
    let blocks = run.count as f64;
    let held_by = |choice: &LayerCost, rank: &Rank| state(choice) + choice.kept * (rank.held * stays);
    let ways = |rank: &Rank| -> Vec<(Seconds, Bytes)> {
        by_kind[rank.kind].blocks[longest].iter().map(|choice| (choice.time, held_by(choice, rank))).collect()
    };
    let ranks = (0..plan.mesh.pipeline).map(rank);
    let ranks: Vec<(Rank, Vec<(Seconds, Bytes)>)> = ranks.map(|rank| (rank, ways(&rank))).collect();
    let all = by_kind.iter().flat_map(|cost| &cost.blocks[longest]);
    let slowest = all.map(|choice| choice.time).fold(Seconds::ZERO, Seconds::max);
    let fastest = choices.iter().map(|choice| choice.time).fold(slowest, Seconds::min);
    // Whether all blocks find room and time in steps of so long for each microbatch.
    let suffices = |time: Seconds| {
        let most =
            |(rank, ways): &(Rank, Vec<(Seconds, Bytes)>)| most_blocks(time - rank.time, rank.memory, ways);
        let caps: Vec<f64> = ranks.iter().map(most).collect();
        if caps.iter().sum::<f64>() < blocks {
            return false;
        }
        ordered.is_none_or(|ordered| {
            let more = least_work(&ranks, &caps, blocks) - fastest * blocks;
            ordered.time(more.max(Seconds::ZERO)) * (1.0 - ROUNDING) <= time * microbatches
        })
    };
    let ends =
        by_kind.iter().map(|cost| cost.embedding.time + cost.head.time).fold(Seconds::ZERO, Seconds::max);
    let whole = slowest * blocks + cost.least_time(question) + ends;
    if ranks.iter().map(|(rank, ways)| most_blocks(whole, rank.memory, ways)).sum::<f64>()
        < blocks * (1.0 - ROUNDING)
    {
        return Seconds::new(f64::INFINITY);
    }
    let (mut low, mut high) = (Seconds::ZERO, whole);
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        match suffices(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    low * microbatches
}

/// Whether the blocks of the longest run do not fit on all ranks together, however they are recomputed.
///
/// Σ_r M_r / min_c (s + x a_c + y b) < c L at one of the moments at which ranks hold most
///
/// x and y microbatches of a stage before backward and between its halves, those of a rank's stage for which x a + y b is
/// least; a_c and b what a block keeps of one, s its state, M_r what is left of the memory; L blocks in c copies.
fn is_crowded(question: &Question, candidate: &Candidate, plan: &Plan, layers: &LayerCosts) -> bool {
    let runs = question.model.blocks.iter().enumerate();
    let (Some((longest, run)), true) = (runs.max_by_key(|(_, run)| run.count), plan.offload.is_none()) else {
        return false;
    };
    let state = |layer: &LayerCost| gpu_state(plan, Parameters::of(layer)).get();
    let lost = 1.0 + plan.stack.fragmentation.value;
    let in_flight = layers.in_flight(candidate);
    let last = candidate.shape(question.job.global_batch).stages() - 1;
    let most = |rank: usize, moment: &Moment| {
        let cost = &layers.by_kind(candidate)[plan.kind(rank)];
        let mut room = plan.node(rank).gpu.memory.value.get() - fixed_overhead(plan).get();
        for own in moment {
            let ends = [(0, &cost.embedding), (last, cost.head_of(candidate))];
            for (_, end) in ends.into_iter().filter(|(stage, _)| own.stage % (last + 1) == *stage) {
                room -= state(end) + own.of(end) * lost;
            }
        }
        let of_choice = |choice: &LayerCost| {
            let least = moment.iter().map(|own| own.of(choice)).fold(f64::INFINITY, f64::min);
            state(choice) + least * lost
        };
        let block = cost.blocks[longest].iter().map(of_choice).fold(f64::INFINITY, f64::min);
        room.max(0.0) / block.max(1.0)
    };
    let blocks = (run.count * layers.kind(candidate).copies) as f64 * (1.0 - ROUNDING);
    let moments = in_flight.moments.first().map_or(0, Vec::len);
    let ranks = || in_flight.moments.iter().enumerate();
    (0..moments).any(|moment| ranks().map(|(rank, own)| most(rank, &own[moment])).sum::<f64>() < blocks)
}

/// The least work of so many blocks on these ranks, fractions allowed, of which each takes no more than its cap.
///
/// On a rank n blocks with memory M take the least work where none of them recomputes more than it must: as many as M
/// allows run the fastest way; beyond, each more makes others change to a way that keeps less. The work is convex and
/// piecewise linear in n, with a kink at M / s_c for each way c, so that the cheapest pieces of all ranks are taken first.
fn least_work(ranks: &[(Rank, Vec<(Seconds, Bytes)>)], caps: &[f64], blocks: f64) -> Seconds {
    let mut pieces: Vec<(f64, f64)> = Vec::with_capacity(3 * ranks.len());
    for ((rank, ways), cap) in ranks.iter().zip(caps) {
        // Blocks that fit under each way, and the work of so many.
        let mut points: Vec<(f64, f64)> =
            ways.iter().map(|(time, held)| (rank.memory / held.max(Bytes::new(1.0)), time.get())).collect();
        points.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)));
        let (mut at, mut done) = (0.0, 0.0);
        while at < *cap {
            // Of the ways under which more fit, that which makes a block more cheapest.
            let slope = |(fit, time): &(f64, f64)| ((fit * time - done) / (fit - at), *fit);
            let next = points.iter().filter(|(fit, _)| *fit > at * (1.0 + 1e-12) + 1e-12).map(slope);
            let Some((slope, fit)) = next.min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1))) else {
                break;
            };
            let end = fit.min(*cap);
            pieces.push((slope, end - at));
            done += slope * (end - at);
            at = end;
        }
    }
    pieces.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut left, mut work) = (blocks, 0.0);
    for (slope, length) in pieces {
        let taken = length.min(left);
        work += slope * taken;
        left -= taken;
    }
    Seconds::new(work)
}

/// Halvings of the interval that holds a bound: to a millionth of it.
const BISECTIONS: usize = 20;

/// What a pipeline rank has left for blocks.
#[derive(Clone, Copy)]
struct Rank {
    /// The kind of its node.
    kind: usize,
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
}
