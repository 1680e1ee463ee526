//! How many whole blocks ranks can run in a time and hold in their memory.

use super::block_mixes::{ALMOST, RankRoom, Trade, Way, convex_increments};
use super::layers_in_order::{LayersInOrder, Ramp};
use super::message_path::MessagePath;
use super::ordered_work::OrderedWork;
use super::pipeline_work::ROUNDING;
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, ModelCost, Parameters};
use std::collections::BTreeMap;
use trainwright_lower::memory::fixed_overhead;
use trainwright_spec::data::Divided;
use trainwright_spec::model::BlockRun;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};

/// Halvings of the interval that holds a bound.
const BISECTIONS: usize = 24;

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

/// What blocks of the longest run take on a rank at least.
struct RankTimes {
    /// A microbatch's time of 0, 1, … blocks, as many as it can hold.
    times: Vec<Seconds>,
    /// What each more block adds, by the lower convex hull of these.
    increments: Vec<f64>,
}

impl RankTimes {
    fn of(room: &RankRoom, run: usize, blocks: usize) -> Self {
        let mut times = room.least_times(run, blocks);
        if times.is_empty() {
            // Not even embedding and head fit: then no block does.
            times.push(room.time);
        }
        let increments = convex_increments(times[1..].iter().map(|time| (*time - times[0]).get()));
        Self { times, increments }
    }

    /// The most blocks within a time.
    fn most_blocks(&self, time: Seconds) -> usize {
        self.times.partition_point(|least| *least * (1.0 - ALMOST) <= time).saturating_sub(1)
    }
}

/// The blocks of the longest run on the ranks of a pipeline.
struct BlockPipeline<'a> {
    ranks: Vec<RankTimes>,
    /// Before each rank begins, and after it ends: what does not depend on how blocks are split.
    before: Vec<Seconds>,
    /// What each block on a rank before adds to that.
    of_block: Seconds,
    /// All copies'.
    blocks: usize,
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
        let all_blocks = blocks * kind.copies;
        let copies = kind.copies as f64;
        let mut pipeline = Self {
            before: vec![around; rooms.len()],
            of_block: Seconds::ZERO,
            ranks: rooms.iter().map(|room| RankTimes::of(room, longest, all_blocks)).collect(),
            blocks: all_blocks,
            copies,
            fastest,
            microbatches: plan.microbatches() as f64 / copies,
            ordered,
            in_order: None,
        };
        if plan.virtual_stages == 1 && kind.copies == 1 {
            pipeline.in_order = Some(LayersInOrder {
                counts: model.question.model.blocks.iter().map(|run| run.count).collect(),
                ranks: rooms,
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
        let of_rank = most(&mut self.ranks.iter().map(|rank| rank.times[0]));
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
        self.caps(enough).iter().sum::<usize>() < self.blocks || self.in_order.as_ref().is_some_and(lacks)
    }

    /// How many whole blocks each rank can run in `time`, and hold.
    fn caps(&self, time: Seconds) -> Vec<usize> {
        let cap =
            |rank: usize, before: Seconds| self.ranks[rank].most_blocks((time - before) / self.microbatches);
        let mut caps: Vec<usize> = (0..self.ranks.len()).map(|rank| cap(rank, self.before[rank])).collect();
        if self.of_block > Seconds::ZERO {
            let mut behind = 0;
            for rank in (0..caps.len()).rev() {
                // The ranks before have what this one and those behind it cannot take.
                let rest = self.blocks.saturating_sub(behind + caps[rank]);
                caps[rank] = caps[rank].min(cap(rank, self.before[rank] + self.of_block * rest as f64));
                behind += caps[rank];
            }
        }
        caps
    }

    /// Whether all blocks find room and time in steps of `time`.
    fn is_possible(&self, time: Seconds) -> bool {
        let caps = self.caps(time);
        if caps.iter().sum::<usize>() < self.blocks {
            return false;
        }
        if self.in_order.as_ref().is_some_and(|layers| !layers.fit(time, &self.before)) {
            return false;
        }
        self.ordered.is_none_or(|ordered| {
            let more = self.least_work(&caps) - self.fastest * self.blocks as f64;
            let more = more.max(Seconds::ZERO) / self.copies;
            let caps: Vec<f64> = caps.iter().map(|cap| *cap as f64).collect();
            let caps = (self.copies == 1.0).then_some(&caps[..]);
            ordered.time(more, caps) * (1.0 - ROUNDING) <= time
        })
    }

    /// The least work of all blocks, of which each rank takes no more than its cap: the cheapest of all ranks, since each costs a
    /// rank no less than the one before.
    fn least_work(&self, caps: &[usize]) -> Seconds {
        let of_rank = |(rank, cap): (&RankTimes, &usize)| rank.increments[..*cap].to_vec();
        let mut all: Vec<f64> = self.ranks.iter().zip(caps).flat_map(of_rank).collect();
        all.sort_by(f64::total_cmp);
        Seconds::new(all.iter().take(self.blocks).sum())
    }
}

/// What each pipeline rank has left for blocks, and in which ways it can run those of each run of the model.
fn rank_rooms(
    model: &CostModel,
    candidate: &Candidate,
    plan: &Plan,
    messages: &MessagePath,
) -> Vec<RankRoom> {
    let by_kind = model.by_kind(candidate);
    let in_flight = model.pipelines.in_flight(candidate);
    let (schedule, shape) = (candidate.schedule(), candidate.shape(model.question.job.global_batch));
    let (stages, copies) = (shape.stages(), schedule.copies());
    let overhead = fixed_overhead(plan);
    let state = |layer: &LayerCost| Parameters::of(layer).gpu_state(plan);
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.lost_part(plan.mesh.tensor);
    // Offloaded activations leave but for a block's.
    let stays = if plan.offload.activations.is_some() { 0.0 } else { lost };
    let peak = least_peak(model, candidate, plan);
    let (longest, _) = model.longest_run();
    // Of two copies of a stage each may have what the other has not.
    let must_have = match copies {
        1 => stages_of_run(&model.question.model.blocks, longest, stages),
        _ => 0..0,
    };
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
        let way = |choice: &LayerCost, in_flight: f64| Way {
            time: choice.time,
            memory: state(choice) + choice.kept * (in_flight * stays),
        };
        let trade = |choices: &[LayerCost], in_flight: f64| {
            Trade::of(&choices.iter().map(|choice| way(choice, in_flight)).collect::<Vec<Way>>())
        };
        let mut runs: Vec<Trade> =
            cost.blocks.iter().map(|choices| trade(choices, in_flight.least[rank])).collect();
        // Of each number of microbatches in flight, how many stages must have a block.
        let mut own: BTreeMap<usize, usize> = BTreeMap::new();
        let of_rank = must_have.clone().filter(|stage| schedule.rank_of(*stage, shape) == rank);
        of_rank.for_each(|stage| *own.entry(in_flight.by_stage[stage]).or_default() += 1);
        let least = in_flight.least[rank] as usize;
        let mut must_have = Vec::with_capacity(own.len());
        for (held, stages) in own {
            let run = if held == least { longest } else { runs.len() };
            must_have.push((run, stages));
            if held > least {
                runs.push(trade(&cost.blocks[longest], held as f64));
            }
        }
        RankRoom { time, memory, runs, must_have }
    };
    (0..plan.mesh.pipeline).map(room).collect()
}

/// The stages of so many that surely have a block of a run and no other: all but the first and the last have a block, so that the
/// runs before this one end in the first stages, and those after it begin in the last ones.
fn stages_of_run(blocks: &[BlockRun], run: usize, stages: usize) -> std::ops::Range<usize> {
    let count = |runs: &[BlockRun]| runs.iter().map(|run| run.count).sum::<usize>();
    let (before, after) = (count(&blocks[..run]), count(&blocks[run + 1..]));
    1 + before..stages.saturating_sub(1 + after).max(1 + before)
}

/// What the backward of any block holds beyond activations at least; `None` where something else may stand in that memory:
/// gathered weights, gradients that are not reduced, or what halves of backward hold.
pub(super) fn least_peak(model: &CostModel, candidate: &Candidate, plan: &Plan) -> Option<Bytes> {
    let halves = model.pipelines.kind(candidate).halves;
    if halves || plan.divides(Divided::Weights) || plan.shards_gradients() {
        return None;
    }
    let blocks = model.of(candidate).blocks.iter().flatten();
    Some(blocks.map(|choice| choice.peak).reduce(Bytes::min).unwrap_or(Bytes::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::model::preset::preset;

    #[test]
    fn stages_between_the_ends_have_a_block_of_the_run_that_fills_them() {
        let block = preset("gpt2").unwrap().blocks[0].block.clone();
        let check = |counts: &[usize], run: usize, stages: usize, expected: std::ops::Range<usize>| {
            let runs: Vec<BlockRun> =
                counts.iter().map(|count| BlockRun { count: *count, block: block.clone() }).collect();
            assert_eq!(
                stages_of_run(&runs, run, stages),
                expected,
                "{counts:?}, run {run} on {stages} stages"
            );
        };
        // The first and the last stage may have the embedding and the head alone.
        check(&[8], 0, 6, 1..5);
        // Two blocks before may fill stages 1 and 2, three behind 6 to 8.
        check(&[2, 20, 3], 1, 10, 3..6);
        check(&[2, 20, 3], 0, 30, 1..6);
        // None is sure to have only this run.
        check(&[2, 20, 3], 1, 7, 3..3);
        check(&[8], 0, 2, 1..1);
        check(&[8], 0, 1, 1..1);
    }
}
