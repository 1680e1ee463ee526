//! How many whole blocks ranks can run in a time and hold in their memory.

use super::block_mixes::{RankRoom, Way, least_work};
use super::layers_in_order::{LayersInOrder, OrderedRank, Ramp, Trade};
use super::message_path::MessagePath;
use super::ordered_work::OrderedWork;
use super::pipeline_work::ROUNDING;
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, ModelCost, Parameters};
use trainwright_lower::memory::fixed_overhead;
use trainwright_spec::data::Divided;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};

/// Halvings of the interval that holds a bound.
const BISECTIONS: usize = 24;

/// What rounding may take from a number of whole blocks.
const ALMOST: f64 = 1e-6;

/// The least time in which the ranks of a pipeline run the blocks of the model's longest run, each whole on one rank.
///
/// The smallest T with Σ_r ⌊n_r⌋ ≥ c L, and in which the least work of these blocks is done in the schedule's order, found by
/// bisection; n_r is the largest number of blocks that rank r can both run in time and hold: max Σ x_c with
/// m / c (e_r + Σ x_c t_c) ≤ T − P_r and Σ x_c (s + f_r a_c) ≤ M_r over its recompute choices c.
///
/// L blocks in c copies, m microbatches, e_r embedding, head and messages in line of a microbatch; t_c time and a_c kept activations of
/// a block under choice c, s its state, f_r microbatches that the stages of rank r hold at least, M_r its memory. P_r is what the
/// ranks before r take before it can begin, and after it ends: what no pass hides (`around`), a message from each to the next, and a pass of at least one block of
/// each; where each has one stage, of all the blocks that the ranks from r on cannot take. Infinite if the blocks do not fit at
/// all.
///
/// Of the smallest T only as much is found as matters: nothing below `least`, nor above `most`.
pub(super) fn capacity_bound(
    model: &CostModel,
    candidate: &Candidate,
    plan: &Plan,
    (messages, around, ordered): (&MessagePath, Seconds, Option<&OrderedWork>),
    (least, most): (Seconds, Option<Seconds>),
) -> Seconds {
    let pipeline = BlockPipeline::of(model, candidate, plan, (messages, around, ordered));
    let enough = pipeline.enough_time(model, candidate);
    if pipeline.lacks_memory(enough) {
        return Seconds::new(f64::INFINITY);
    }
    if let Some(most) = most.filter(|most| !pipeline.is_possible(*most)) {
        return most;
    }
    if pipeline.is_possible(least) {
        return least;
    }
    let (mut low, mut high) = (least, most.unwrap_or(enough).min(enough));
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        match pipeline.is_possible(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    low
}

/// The blocks of the longest run on the ranks of a pipeline.
struct BlockPipeline<'a> {
    ranks: Vec<RankRoom>,
    /// Before each rank begins, and after it ends: what does not depend on how blocks are split.
    before: Vec<Seconds>,
    /// What each block on a rank before adds to that.
    of_block: Seconds,
    /// All copies'.
    blocks: f64,
    copies: f64,
    /// The fastest way to run a block on any rank.
    fastest: Seconds,
    /// Of each copy.
    microbatches: f64,
    ordered: Option<&'a OrderedWork>,
    /// Where each rank has one stage.
    in_order: Option<LayersInOrder>,
}

impl<'a> BlockPipeline<'a> {
    fn of(
        model: &CostModel,
        candidate: &Candidate,
        plan: &Plan,
        (messages, around, ordered): (&MessagePath, Seconds, Option<&'a OrderedWork>),
    ) -> Self {
        let (longest, blocks) = model.longest_run();
        let all = || model.by_kind(candidate).iter().flat_map(|cost| &cost.blocks[longest]);
        let slowest = all().map(|choice| choice.time).fold(Seconds::ZERO, Seconds::max);
        let fastest = all().map(|choice| choice.time).fold(slowest, Seconds::min);
        let kind = model.pipelines.kind(candidate);
        let rooms = rank_rooms(model, candidate, plan, messages);
        let room = |(room, runs): &(RankRoom, Vec<Vec<Way>>)| RankRoom {
            ways: runs[longest].clone(),
            ..room.clone()
        };
        let ranks: Vec<RankRoom> = rooms.iter().map(room).collect();
        let copies = kind.copies as f64;
        let mut pipeline = Self {
            before: vec![around; ranks.len()],
            of_block: Seconds::ZERO,
            ranks,
            blocks: blocks as f64 * copies,
            copies,
            fastest,
            microbatches: plan.microbatches() as f64 / copies,
            ordered,
            in_order: None,
        };
        if plan.virtual_stages == 1 && kind.copies == 1 {
            pipeline.in_order = Some(LayersInOrder {
                counts: model.question.model.blocks.iter().map(|run| run.count).collect(),
                ranks: rooms.into_iter().map(ordered_rank).collect(),
                ramp: Ramp::even(Seconds::ZERO),
                microbatches: pipeline.microbatches,
            });
        }
        if kind.ramps {
            // Before its first backward ends, if backward is in halves, a rank may have ended its own.
            let part = |layer: &LayerCost| if kind.halves { layer.forward } else { layer.time };
            let cost = model.of(candidate);
            let of_block = all().map(part).fold(slowest, Seconds::min);
            let several = plan.virtual_stages > 1;
            // Of several stages, a rank's first has a block at least, but for the model's first.
            let others = if several { cost.least_block(part) } else { Seconds::ZERO };
            for (rank, before) in pipeline.before.iter_mut().enumerate().skip(1) {
                let messages = messages.to(rank, !kind.halves);
                *before += part(&cost.embedding) + others * (rank - 1) as f64 + messages;
            }
            pipeline.of_block = if several { Seconds::ZERO } else { of_block };
            let choices = || model.by_kind(candidate).iter().flat_map(|cost| cost.blocks.iter().flatten());
            let of_any = choices().map(part).reduce(Seconds::min).unwrap_or(Seconds::ZERO);
            if let Some(layers) = &mut pipeline.in_order {
                layers.ramp = match kind.halves {
                    true => Ramp::even(of_any),
                    false => Ramp::of_passes(&layers.ranks, of_any, longest, blocks),
                };
            }
        }
        pipeline
    }

    /// A time that is enough for all layers on one rank.
    fn enough_time(&self, model: &CostModel, candidate: &Candidate) -> Seconds {
        let ends = model.by_kind(candidate).iter().map(|cost| cost.embedding.time + cost.head.time);
        let ends = ends.fold(Seconds::ZERO, Seconds::max);
        let most = |times: &mut dyn Iterator<Item = Seconds>| times.fold(Seconds::ZERO, Seconds::max);
        let before = most(&mut self.before.iter().copied());
        let of_rank = most(&mut self.ranks.iter().map(|rank| rank.time));
        let runs = model.question.model.blocks.iter().enumerate();
        let blocks = runs.map(|(run, blocks)| self.slowest_of(model, candidate, run) * blocks.count as f64);
        let all = blocks.sum::<Seconds>() * self.copies + ends + of_rank;
        all * self.microbatches * (1.0 + self.copies) + before
    }

    /// The slowest way to run a block of a run on any rank.
    fn slowest_of(&self, model: &CostModel, candidate: &Candidate, run: usize) -> Seconds {
        let choices = model.by_kind(candidate).iter().flat_map(|cost| &cost.blocks[run]);
        choices.map(|choice| choice.time).fold(Seconds::ZERO, Seconds::max)
    }

    /// Whether blocks find no room in memory, given a time that is enough for all of them.
    fn lacks_memory(&self, enough: Seconds) -> bool {
        let lacks = |layers: &LayersInOrder| !layers.fit(enough, &self.before);
        self.caps(enough).iter().sum::<f64>() < self.blocks || self.in_order.as_ref().is_some_and(lacks)
    }

    /// How many whole blocks each rank can run in `time`, and hold.
    fn caps(&self, time: Seconds) -> Vec<f64> {
        let cap = |rank: usize, before: Seconds| {
            let room = &self.ranks[rank];
            let most = room.most_blocks((time - before) / self.microbatches - room.time);
            (most + ALMOST).floor().min(self.blocks)
        };
        let mut caps: Vec<f64> = (0..self.ranks.len()).map(|rank| cap(rank, self.before[rank])).collect();
        if self.of_block > Seconds::ZERO {
            let mut behind = 0.0;
            for rank in (0..caps.len()).rev() {
                // The ranks before have what this one and those behind it cannot take.
                let rest = (self.blocks - behind - caps[rank]).max(0.0);
                caps[rank] = caps[rank].min(cap(rank, self.before[rank] + self.of_block * rest));
                behind += caps[rank];
            }
        }
        caps
    }

    /// Whether all blocks find room and time in steps of `time`.
    fn is_possible(&self, time: Seconds) -> bool {
        let caps = self.caps(time);
        if caps.iter().sum::<f64>() < self.blocks {
            return false;
        }
        if self.in_order.as_ref().is_some_and(|layers| !layers.fit(time, &self.before)) {
            return false;
        }
        self.ordered.is_none_or(|ordered| {
            let more = least_work(&self.ranks, &caps, self.blocks) - self.fastest * self.blocks;
            let more = more.max(Seconds::ZERO) / self.copies;
            let caps = (self.copies == 1.0).then_some(&caps[..]);
            ordered.time(more, caps) * (1.0 - ROUNDING) <= time
        })
    }
}

/// A rank of one stage with its ways to run the blocks of each run.
fn ordered_rank((room, runs): (RankRoom, Vec<Vec<Way>>)) -> OrderedRank {
    OrderedRank {
        time: room.time,
        memory: room.memory,
        runs: runs.iter().map(|ways| Trade::of(ways)).collect(),
    }
}

/// What each pipeline rank has left for blocks, and in which ways it can run those of each run of the model.
fn rank_rooms(
    model: &CostModel,
    candidate: &Candidate,
    plan: &Plan,
    messages: &MessagePath,
) -> Vec<(RankRoom, Vec<Vec<Way>>)> {
    let by_kind = model.by_kind(candidate);
    let in_flight = model.pipelines.in_flight(candidate);
    let (schedule, shape) = (candidate.schedule(), candidate.shape(model.question.job.global_batch));
    let (stages, copies) = (shape.stages(), schedule.copies());
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
        let ends = cost.ends(candidate, stages).into_iter();
        let ends = ends.flat_map(|(stage, end)| (0..copies).map(move |copy| (stage + copy * stages, end)));
        for (stage, end) in ends.filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank) {
            time += end.time;
            memory -= state(end) + end.kept * (in_flight.by_stage[stage] as f64 * lost);
            if peak.is_some() {
                largest = largest.max(end.peak);
            }
        }
        if shape.virtual_stages == 1 && copies == 1 {
            time += messages.sent_in_line(rank);
        }
        memory -= largest * lost;
        let kept = in_flight.least[rank] * stays;
        let way = |choice: &LayerCost| Way { time: choice.time, memory: state(choice) + choice.kept * kept };
        let runs = cost.blocks.iter().map(|choices| choices.iter().map(way).collect()).collect();
        (RankRoom { time, memory, ways: Vec::new() }, runs)
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
