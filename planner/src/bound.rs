//! Lower bounds: what no partition of a candidate can beat.
//!
//! ```text
//! layout_bound    a layout under any schedule and state      one multiplication
//! step_bound      a candidate, memory left aside             closed forms
//! tight_bound     a candidate, in its memory, with what its data axis sends
//! plan_bound      a candidate with one partition and recomputation
//! ```
//!
//! Each is at least the one before. A property test holds them below simulated times.

mod memory;
pub(crate) mod order;
pub(crate) mod state;

use crate::candidate::Candidate;
use crate::layers::{LayerCost, LayerCosts, ModelCost, Parameters};
use crate::question::Question;
use crate::space::recompute_choices;
use memory::memory_pipeline_bound;
use order::{Blocks, Line};
use state::sent_bound;
pub(crate) use state::update_bound;
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::memory::{fixed_overhead, gpu_state_per_parameter};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::program::{Axis, CopyDirection};
use trainwright_spec::schedule::ideal::{self, PassTimes, Times};
use trainwright_spec::schedule::{PipelineShape, shorter_step};
use trainwright_spec::units::{Bytes, Seconds};

/// What rounding may take from a bound: the simulator's clock is in whole picoseconds.
const ROUNDING: f64 = 1e-6;

/// A time that no step of a candidate with this layout is below.
///
/// T = max(m W / p, m ⌈L / p⌉ t)
///
/// m microbatches of W work on p ranks, L blocks of t at least: some rank has its share of the work, and whole blocks.
pub(crate) fn layout_bound(question: &Question, layout: &Candidate, cost: &ModelCost) -> Seconds {
    let shape = layout.shape(question.job.global_batch);
    let busiest = cost.least_time(question) * (1.0 / shape.ranks as f64);
    let blocks = question.model.layers().div_ceil(shape.ranks) as f64;
    busiest.max(least_block(cost, |block| block.time) * blocks)
        * (shape.microbatches as f64 * (1.0 - ROUNDING))
}

/// A time that no step of `candidate` is below, whichever partition and recomputation is chosen for it. `plan` has the
/// candidate's choices, and no stages yet.
pub(crate) fn step_bound(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Seconds {
    let cost = layers.of(candidate);
    let pipeline = pipeline_bound(question, candidate, layers, cost);
    (pipeline + update_bound(plan, cost.parameters(question), costs)) * (1.0 - ROUNDING)
}

/// The same bound or a higher one, with the order of the passes, what memory forces ranks to compute again and what the data
/// axis sends; not all of it where a part is not below `most`.
pub(crate) fn tight_bound(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    (layers, most): (&LayerCosts, Option<Seconds>),
    costs: &impl Costs,
) -> Seconds {
    let cost = layers.of(candidate);
    let update = update_bound(plan, cost.parameters(question), costs);
    let whole = |time: Seconds| (time + update) * (1.0 - ROUNDING);
    let enough = |time: Seconds| most.is_some_and(|most| whole(time) >= most);
    let sent = sent_bound(question, candidate, plan, layers, costs)
        .max(copy_bound(question, candidate, plan, layers, costs));
    if enough(sent) {
        return whole(sent);
    }
    let ordered = Ordered::of(question, candidate, layers, cost);
    let in_order = ordered.as_ref().map_or(Seconds::ZERO, |ordered| ordered.time(Seconds::ZERO));
    let pipeline = pipeline_bound(question, candidate, layers, cost).max(in_order).max(sent);
    if enough(pipeline) {
        return whole(pipeline);
    }
    let in_memory = memory_pipeline_bound(question, candidate, plan, layers, ordered.as_ref());
    whole(pipeline.max(in_memory))
}

/// How long the passes of a layer take.
fn pass_times(layer: &LayerCost) -> PassTimes {
    let weight = layer.time - layer.forward - layer.input;
    PassTimes { forward: layer.forward, input: layer.input, weight }
}

fn plus(a: PassTimes, b: PassTimes) -> PassTimes {
    PassTimes { forward: a.forward + b.forward, input: a.input + b.input, weight: a.weight + b.weight }
}

/// The time of a step's passes in the order of their schedule with free messages; of a long one that of a shorter one and
/// the busiest rank's work for the microbatches that it lacks. Nothing if the passes wait for each other.
fn makespan(
    candidate: &Candidate,
    shape: PipelineShape,
    stages: Vec<PassTimes>,
    layers: &LayerCosts,
) -> Seconds {
    let few = enough_microbatches(candidate, shape);
    let shorter = PipelineShape { microbatches: few, ..shape };
    let times = Times { stages, ..Times::equal(shorter, PassTimes::unit()) };
    let Ok(run) = ideal::run(&layers.lists(candidate.schedule, shorter), &times) else {
        return Seconds::ZERO;
    };
    let busiest = run.work.iter().copied().fold(Seconds::ZERO, Seconds::max) / few as f64;
    run.makespan + busiest * (shape.microbatches - few) as f64
}

fn least_block(cost: &ModelCost, of: fn(&LayerCost) -> Seconds) -> Seconds {
    cost.blocks.iter().flatten().map(of).reduce(Seconds::min).unwrap_or(Seconds::ZERO)
}

/// The least time of a candidate's pipeline.
///
/// One stage per rank, r = 0 … p − 1: T ≥ m t_r + Σ_{q<r} φ t_q, which `ramped` minimises over all t with Σ t = W.
/// Several: T ≥ m t_r + r τ, whose mean over the ranks is m W / p + τ (p − 1) / 2.
///
/// Rank r cannot begin before the ranks before it have each run a forward, nor, where backward runs as a whole, can the
/// step end before they have each run a backward after its last: φ = 1 then, and else the part of the work that is forward.
/// τ is what the first stage of a rank takes of that at least, one block's. With two copies of the stages, or steps that
/// follow each other without a gap, only the work counts. In any case some rank has ⌈c L / p⌉ blocks of c copies, of
/// which each runs m / c microbatches.
fn pipeline_bound(
    question: &Question,
    candidate: &Candidate,
    layers: &LayerCosts,
    cost: &ModelCost,
) -> Seconds {
    let kind = layers.kind(candidate);
    let shape = candidate.shape(question.job.global_batch);
    let (p, m) = (shape.ranks as f64, shape.microbatches as f64);
    let work = cost.least_time(question);
    let copies = kind.copies as f64;
    let blocks = (question.model.layers() * kind.copies).div_ceil(shape.ranks) as f64;
    let whole_blocks = least_block(cost, |block| block.time) * (blocks * m / copies);
    let spread = match (kind.ramps, shape.virtual_stages) {
        (false, _) => work * (m / p),
        (true, 1) => ramped(
            work,
            shape.ranks,
            shape.microbatches,
            if kind.halves { forward_part(layers, candidate) } else { 1.0 },
        ),
        (true, _) => {
            let first =
                least_block(cost, if kind.halves { |block| block.forward } else { |block| block.time });
            work * (m / p) + first * ((p - 1.0) / 2.0)
        }
    };
    spread.max(whole_blocks)
}

/// What the order of a candidate's passes makes of the work of a microbatch: see `order`.
///
/// It is that of a step of fewer microbatches where there are many, and the mean rank's work for each of the others: as
/// long as the schedule repeats, each more takes what the busiest rank does.
struct Ordered {
    lines: Vec<Line>,
    /// The least work of a microbatch.
    work: Seconds,
    /// Microbatches of the others, for each rank.
    rest: f64,
}

impl Ordered {
    fn of(question: &Question, candidate: &Candidate, layers: &LayerCosts, cost: &ModelCost) -> Option<Self> {
        if !candidate.schedule().flushes() || candidate.mesh.pipeline == 1 {
            return None;
        }
        let shape = candidate.shape(question.job.global_batch);
        let few = enough_microbatches(candidate, shape);
        let rest = (shape.microbatches - few) as f64 / shape.ranks as f64;
        let shape = PipelineShape { microbatches: few, ..shape };
        let by_kind = layers.by_kind(candidate);
        let least = |of: &dyn Fn(&ModelCost) -> Vec<LayerCost>| {
            let times = by_kind.iter().flat_map(of).map(|layer| pass_times(&layer));
            times.reduce(least_passes).expect("a layer has choices")
        };
        let counts = question.model.blocks.iter().map(|run| run.count).enumerate();
        let runs = counts.map(|(run, count)| (count, least(&|cost| cost.blocks[run].clone())));
        let blocks = Blocks {
            runs: runs.collect(),
            embedding: least(&|cost| vec![cost.embedding]),
            head: least(&|cost| vec![*cost.head_of(candidate)]),
        };
        let lines = layers.order(candidate.schedule, shape, &blocks).lines(&blocks);
        Some(Self { lines, work: cost.least_time(question), rest })
    }

    /// A time that no step is below whose microbatches take so much more work than the least.
    fn time(&self, more: Seconds) -> Seconds {
        let of = |line: &Line| line.time + more * line.more;
        let few = self.lines.iter().map(of).fold(Seconds::ZERO, Seconds::max);
        few + (self.work + more) * self.rest
    }
}

fn least_passes(a: PassTimes, b: PassTimes) -> PassTimes {
    PassTimes {
        forward: a.forward.min(b.forward),
        input: a.input.min(b.input),
        weight: a.weight.min(b.weight),
    }
}

/// As many microbatches as a step has, or fewer after which its schedule has repeated.
pub(crate) fn enough_microbatches(candidate: &Candidate, shape: PipelineShape) -> usize {
    shorter_step(candidate.schedule(), shape).unwrap_or(shape).microbatches
}

/// The least part of a layer's time that is forward.
fn forward_part(layers: &LayerCosts, candidate: &Candidate) -> f64 {
    layers.forward_parts(candidate).fold(1.0, f64::min)
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
        true => work * (before / (1.0 - (1.0 - before / m).powf(p))),
        false => work * (m / p),
    }
}

/// The least time of a step whose activations leave the GPUs and come back.
///
/// T = m / p max_{λ, μ ∈ {0, ½, 1}} ( L min_c (λ f_c + (1 − λ) o_c + μ b_c + (1 − μ) i_c) + S (λ o + (1 − λ) f + μ i + (1 − μ) b) )
///
/// m microbatches, p ranks, L blocks of the longest run, S stages; f_c and b_c forward and backward of a block under recompute
/// choice c, o_c and i_c the copies of what it keeps, f, b, o and i the least of these over all c. A pass begins when the copies
/// of those before it have left, and fetches nothing before it begins: forward of n blocks takes both Σ f_c and the last
/// one's copy, and the first block and Σ o_c, so any mean of the two; backward likewise.
fn copy_bound(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Seconds {
    let longest = question.model.blocks.iter().enumerate().max_by_key(|(_, run)| run.count);
    let (Some(place), None, Some((longest, run))) =
        (plan.offload.activations, plan.offload.activation_blocks, longest)
    else {
        return Seconds::ZERO;
    };
    let many = Bytes::new(1e15);
    let rate = |direction| {
        let copy = QueryWork::Copy { direction, place, bytes: many };
        many / least_on_any(&question.cluster, costs, copy).get()
    };
    let (out_rate, back_rate) = (rate(CopyDirection::ToHost), rate(CopyDirection::FromHost));
    // Of each choice: forward, its copy, backward, its copy.
    let choices = layers.by_kind(candidate).iter().flat_map(|cost| &cost.blocks[longest]);
    let parts: Vec<[f64; 4]> = choices
        .map(|choice| {
            let backward = choice.time - choice.forward;
            [choice.forward.get(), choice.kept / out_rate, backward.get(), choice.kept / back_rate]
        })
        .collect();
    let least: [f64; 4] =
        std::array::from_fn(|part| parts.iter().map(|of| of[part]).fold(f64::INFINITY, f64::min));
    let shape = candidate.shape(question.job.global_batch);
    let (blocks, stages) = (run.count as f64, (shape.stages() as f64).min(run.count as f64));
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

/// A time that no step of this very plan of a candidate is below: its passes in the order of its schedule, with free
/// messages, and its update.
pub(crate) fn plan_bound(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Seconds {
    let schedule = candidate.schedule();
    if !schedule.flushes() {
        return Seconds::ZERO;
    }
    let cost = layers.of(candidate);
    let by_kind = layers.by_kind(candidate);
    let shape = candidate.shape(question.job.global_batch);
    let options = recompute_choices(question);
    let runs = question.model.blocks.iter().enumerate();
    let classes: Vec<usize> = runs.flat_map(|(class, run)| std::iter::repeat_n(class, run.count)).collect();
    let mut next = classes.iter();
    let last = plan.stages.len() - 1;
    let stage = |(index, blocks): (usize, &StageBlocks)| {
        let cost = &by_kind[plan.kind(schedule.rank_of(index, shape))];
        let own = blocks.0.iter().filter_map(|recompute| {
            let option = options.iter().position(|option| option == recompute)?;
            next.next().map(|class| &cost.blocks[*class][option])
        });
        let ends = [(0, &cost.embedding), (last, cost.head_of(candidate))];
        let ends = ends.into_iter().filter(|(at, _)| *at == index).map(|(_, end)| end);
        let nothing = PassTimes { forward: Seconds::ZERO, input: Seconds::ZERO, weight: Seconds::ZERO };
        own.collect::<Vec<_>>().into_iter().chain(ends).map(pass_times).fold(nothing, plus)
    };
    let stages: Vec<PassTimes> = plan.stages.iter().enumerate().map(stage).collect();
    let passes = makespan(candidate, shape, stages, layers);
    (passes + update_bound(plan, cost.parameters(question), costs)) * (1.0 - ROUNDING)
}

/// The least time of some work over the kinds of nodes.
fn least_on_any(cluster: &Cluster, costs: &impl Costs, work: QueryWork) -> Seconds {
    let firsts = (0..=cluster.others.len()).map(|kind| cluster.first_of(kind));
    let times = firsts.map(|rank| costs.cost(&Query { rank, op: None, work }).time);
    times.reduce(Seconds::min).expect("a cluster has a kind of nodes")
}

/// The memory that some rank of `candidate` needs at least: weights, gradients and optimizer state of its share of
/// the model, of which there are `parameters` on all pipeline ranks, libraries and communicators. Activations come on
/// top.
pub(crate) fn memory_bound(plan: &Plan, parameters: Parameters) -> Bytes {
    let share = plan.schedule().copies() as f64 / plan.mesh.pipeline as f64;
    gpu_state(plan, parameters) * share + fixed_overhead(plan)
}

/// What stays on the GPU of the state of so many parameters.
pub(crate) fn gpu_state(plan: &Plan, parameters: Parameters) -> Bytes {
    let of = |axis, count: f64| match count > 0.0 {
        true => gpu_state_per_parameter(plan, axis).total() * count,
        false => Bytes::ZERO,
    };
    of(Axis::Data, parameters.dense) + of(Axis::ExpertData, parameters.apart)
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
