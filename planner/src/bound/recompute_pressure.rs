//! How much ranks must compute again for want of memory.

use super::block_mixes::{RankRoom, Way, least_work};
use super::ordered_work::OrderedWork;
use super::pipeline_work::ROUNDING;
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, ModelCost, Parameters};
use trainwright_lower::memory::fixed_overhead;
use trainwright_spec::data::Divided;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};

/// Halvings of the interval that holds a bound: to a millionth of it.
const BISECTIONS: usize = 20;

/// The least time of a pipeline of equal blocks whose ranks recompute as much as their memory forces them to.
///
/// The smallest T with Σ_r n_r(T / m) ≥ L, and in which the least work of these blocks is done in the schedule's order, found
/// by bisection; n_r(t) is the largest number of blocks, fractions allowed, that rank r can both run within t per microbatch
/// and hold: max Σ x_c with Σ x_c t_c ≤ t and Σ x_c (s + f_r a_c) ≤ M_r over its recompute choices c.
///
/// m microbatches, L blocks of the model's longest run, t_c time and a_c kept activations of a block under choice c, s
/// its state, f_r microbatches that the stages of rank r hold at least, M_r its memory. Infinite if the blocks do not
/// fit at all; zero for two copies of the stages.
pub(super) fn recompute_bound(
    model: &CostModel,
    candidate: &Candidate,
    plan: &Plan,
    ordered: Option<&OrderedWork>,
) -> Seconds {
    if model.pipelines.kind(candidate).copies > 1 {
        return Seconds::ZERO;
    }
    let pipeline = BlockPipeline::of(model, candidate, plan, ordered);
    let enough = pipeline.enough_time(model, candidate);
    if pipeline.lacks_memory(enough) {
        return Seconds::new(f64::INFINITY);
    }
    let (mut low, mut high) = (Seconds::ZERO, enough);
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        match pipeline.is_possible(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    low * pipeline.microbatches
}

/// The blocks of the longest run on the ranks of a pipeline; times are of a microbatch.
struct BlockPipeline<'a> {
    ranks: Vec<RankRoom>,
    blocks: f64,
    /// The fastest and the slowest way to run a block on any rank.
    fastest: Seconds,
    slowest: Seconds,
    microbatches: f64,
    ordered: Option<&'a OrderedWork>,
}

impl<'a> BlockPipeline<'a> {
    fn of(model: &CostModel, candidate: &Candidate, plan: &Plan, ordered: Option<&'a OrderedWork>) -> Self {
        let (longest, blocks) = model.longest_run();
        let all = model.by_kind(candidate).iter().flat_map(|cost| &cost.blocks[longest]);
        let slowest = all.map(|choice| choice.time).fold(Seconds::ZERO, Seconds::max);
        let choices = model.of(candidate).blocks[longest].iter();
        let fastest = choices.map(|choice| choice.time).fold(slowest, Seconds::min);
        let ranks = rank_rooms(model, candidate, plan, longest);
        let microbatches = plan.microbatches() as f64;
        Self { ranks, blocks: blocks as f64, fastest, slowest, microbatches, ordered }
    }

    /// A time that is enough for all layers on one rank.
    fn enough_time(&self, model: &CostModel, candidate: &Candidate) -> Seconds {
        let ends = model.by_kind(candidate).iter().map(|cost| cost.embedding.time + cost.head.time);
        let ends = ends.fold(Seconds::ZERO, Seconds::max);
        self.slowest * self.blocks + model.of(candidate).least_time(model.question) + ends
    }

    /// Whether blocks find no room in memory, given a time that is enough for all of them.
    fn lacks_memory(&self, enough: Seconds) -> bool {
        let most: f64 = self.ranks.iter().map(|rank| rank.most_blocks(enough)).sum();
        most < self.blocks * (1.0 - ROUNDING)
    }

    /// Whether all blocks find room and time in steps of `time` for each microbatch.
    fn is_possible(&self, time: Seconds) -> bool {
        let most = |rank: &RankRoom| rank.most_blocks(time - rank.time);
        let caps: Vec<f64> = self.ranks.iter().map(most).collect();
        if caps.iter().sum::<f64>() < self.blocks {
            return false;
        }
        self.ordered.is_none_or(|ordered| {
            let more = least_work(&self.ranks, &caps, self.blocks) - self.fastest * self.blocks;
            ordered.time(more.max(Seconds::ZERO)) * (1.0 - ROUNDING) <= time * self.microbatches
        })
    }
}

/// What each pipeline rank has left for the blocks of run `run`.
fn rank_rooms(model: &CostModel, candidate: &Candidate, plan: &Plan, run: usize) -> Vec<RankRoom> {
    let by_kind = model.by_kind(candidate);
    let in_flight = model.pipelines.in_flight(candidate);
    let (schedule, shape) = (candidate.schedule(), candidate.shape(model.question.job.global_batch));
    let overhead = fixed_overhead(plan);
    let state = |layer: &LayerCost| Parameters::of(layer).gpu_state(plan);
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.fragmentation.value;
    // Offloaded activations leave but for a block's.
    let stays = if plan.offload.activations.is_some() { 0.0 } else { lost };
    let peak = least_peak(model, candidate, plan);
    let room = |rank: usize| {
        let kind = plan.kind(rank);
        let cost: &ModelCost = &by_kind[kind];
        let gpu = plan.cluster.node_of(kind).gpu.memory.value;
        let (mut time, mut memory) = (Seconds::ZERO, model.outlook(candidate).room(gpu) - overhead);
        let mut largest = peak.unwrap_or(Bytes::ZERO);
        let ends = cost.ends(candidate, shape.stages()).into_iter();
        for (stage, end) in ends.filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank) {
            time += end.time;
            memory -= state(end) + end.kept * (in_flight.by_stage[stage] as f64 * lost);
            if peak.is_some() {
                largest = largest.max(end.peak);
            }
        }
        memory -= largest * lost;
        let kept = in_flight.least[rank] * stays;
        let way = |choice: &LayerCost| Way { time: choice.time, memory: state(choice) + choice.kept * kept };
        RankRoom { time, memory, ways: cost.blocks[run].iter().map(way).collect() }
    };
    (0..plan.mesh.pipeline).map(room).collect()
}

/// What the backward of any block holds beyond activations at least; `None` where something else may stand in that memory:
/// gathered weights, gradients that are not reduced, or what halves of backward hold.
fn least_peak(model: &CostModel, candidate: &Candidate, plan: &Plan) -> Option<Bytes> {
    let halves = model.pipelines.kind(candidate).halves;
    if halves || plan.divides(Divided::Weights) || plan.shards_gradients() {
        return None;
    }
    let blocks = model.of(candidate).blocks.iter().flatten();
    Some(blocks.map(|choice| choice.peak).reduce(Bytes::min).unwrap_or(Bytes::ZERO))
}
