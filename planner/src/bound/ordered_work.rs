//! What the order of a candidate's passes makes of their work.

use super::longest_paths::{Counts, Passes};
use super::message_path::MessagePath;
use super::pass_order::{Blocks, Line, Order, OrderBound, Parts};
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, ModelCost, PipelineKey, SharedCache, enough_microbatches};
use crate::space::recompute_choices;
use std::sync::Arc;
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::schedule::PipelineShape;
use trainwright_spec::schedule::ideal::PassTimes;
use trainwright_spec::units::Seconds;

/// What is known of schedules' orders.
#[derive(Default)]
pub(super) struct KnownOrders {
    /// The passes of each pipeline, behind what they wait for; `None` if some wait for each other.
    passes: SharedCache<PipelineKey, Option<Arc<Passes>>>,
    /// The means of paths by what they are made for.
    bounds: SharedCache<(PipelineKey, Parts), Arc<OrderBound>>,
}

impl KnownOrders {
    fn passes(&self, model: &CostModel, candidate: &Candidate, shape: PipelineShape) -> Option<Arc<Passes>> {
        self.passes.get_or((candidate.schedule, shape), || {
            let lists = model.pipelines.lists(candidate.schedule, shape);
            Passes::of(&lists, shape.stages()).map(Arc::new)
        })
    }
}

/// What the order of a candidate's passes makes of the work of a microbatch: see `pass_order`.
///
/// It is that of a step of fewer microbatches where there are many, and the mean rank's work for each of the others: as
/// long as the schedule repeats, each more takes what the busiest rank does.
pub(super) struct OrderedWork {
    lines: Vec<Line>,
    /// The least work of a microbatch.
    work: Seconds,
    /// Microbatches of the others, for each rank.
    rest: f64,
    /// What no pass hides.
    around: Seconds,
    /// Where the lines come from.
    order: Arc<OrderBound>,
}

impl OrderedWork {
    /// `None` if the order costs nothing, or steps do not wait for each other. The means that take long to make are left out if the
    /// others give a time that is `enough`.
    pub fn of(
        model: &CostModel,
        known: &KnownOrders,
        candidate: &Candidate,
        (messages, around): (&MessagePath, Seconds),
        enough: &dyn Fn(Seconds) -> bool,
    ) -> Option<Self> {
        if !candidate.schedule().flushes() || candidate.mesh.pipeline == 1 {
            return None;
        }
        let question = model.question;
        let shape = candidate.shape(question.job.global_batch);
        let few = enough_microbatches(candidate, shape);
        let rest = (shape.microbatches - few) as f64 / shape.ranks as f64;
        let shape = PipelineShape { microbatches: few, ..shape };
        let by_kind = model.by_kind(candidate);
        let least = |of: &dyn Fn(&ModelCost) -> Vec<LayerCost>| {
            let times = by_kind.iter().flat_map(of).map(|layer| layer.pass_times());
            times.reduce(elementwise_min).expect("a layer has choices")
        };
        let counts = question.model.blocks.iter().map(|run| run.count).enumerate();
        let runs = counts.map(|(run, count)| (count, least(&|cost| cost.blocks[run].clone())));
        let blocks = Blocks {
            runs: runs.collect(),
            embedding: least(&|cost| vec![cost.embedding]),
            head: least(&|cost| vec![*cost.head_of(candidate)]),
        };
        let message = messages.least();
        let parts = Parts::of(&blocks, message);
        let order = known.bounds.get_or(((candidate.schedule, shape), parts), || {
            let lists = model.pipelines.lists(candidate.schedule, shape);
            let passes = known.passes(model, candidate, shape);
            let (stages, blocks) = (shape.stages(), blocks.count());
            Arc::new(OrderBound::of(Order { lists, passes, stages, blocks, parts }))
        });
        let work = model.of(candidate).least_time(question);
        let schedule = candidate.schedule();
        let rank_of = |stage: usize| schedule.rank_of(stage, shape);
        let lines = order.lines_through_stages(&blocks, message, &rank_of);
        let mut ordered = Self { lines, work, rest, around, order: order.clone() };
        if !enough(ordered.time(Seconds::ZERO, None)) {
            ordered.lines.extend(order.lines_of_splits(&blocks, message, &rank_of));
        }
        Some(ordered)
    }

    /// The passes of the first microbatches, and some paths through them; `None` if passes wait for each other.
    pub fn passes_and_paths(&self) -> Option<(Arc<Passes>, Vec<Counts>)> {
        Some((self.order.passes()?, self.order.paths()))
    }

    /// A time that no step is below whose microbatches take `more` work than the least, and whose ranks have no more than `caps` blocks
    /// of the longest run.
    pub fn time(&self, more: Seconds, caps: Option<&[f64]>) -> Seconds {
        let of = |line: &Line| line.time(caps) + more * line.more;
        let few = self.lines.iter().map(of).fold(Seconds::ZERO, Seconds::max);
        few + (self.work + more) * self.rest + self.around
    }
}

fn elementwise_min(a: PassTimes, b: PassTimes) -> PassTimes {
    PassTimes {
        forward: a.forward.min(b.forward),
        input: a.input.min(b.input),
        weight: a.weight.min(b.weight),
    }
}

/// The time of the passes of one plan of a candidate in the order of its schedule, with the fastest of its messages.
///
/// Of a long step that of a shorter one and the busiest rank's work for the microbatches that it lacks. Zero if the passes wait for
/// each other.
pub(super) fn passes_bound(
    model: &CostModel,
    known: &KnownOrders,
    candidate: &Candidate,
    plan: &Plan,
) -> Seconds {
    let shape = candidate.shape(model.question.job.global_batch);
    let few = enough_microbatches(candidate, shape);
    let shorter = PipelineShape { microbatches: few, ..shape };
    let Some(passes) = known.passes(model, candidate, shorter) else { return Seconds::ZERO };
    let times = stage_times(model, candidate, plan);
    let (makespan, busiest) = passes.makespan(&times, MessagePath::of(model, plan).least());
    makespan + busiest / few as f64 * (shape.microbatches - few) as f64
}

/// The rank whose passes take most of all, and the one whose passes take least.
pub(super) fn busiest_and_idlest(model: &CostModel, candidate: &Candidate, plan: &Plan) -> (usize, usize) {
    let shape = candidate.shape(model.question.job.global_batch);
    let mut work = vec![Seconds::ZERO; shape.ranks];
    for (stage, time) in stage_times(model, candidate, plan).into_iter().enumerate() {
        work[candidate.schedule().rank_of(stage, shape)] += time.forward + time.input + time.weight;
    }
    let by_work = |a: &usize, b: &usize| work[*a].get().total_cmp(&work[*b].get());
    let ranks = || 0..work.len();
    (ranks().max_by(by_work).unwrap_or(0), ranks().min_by(by_work).unwrap_or(0))
}

/// What the passes of a microbatch take on each stage of a plan.
fn stage_times(model: &CostModel, candidate: &Candidate, plan: &Plan) -> Vec<PassTimes> {
    let schedule = candidate.schedule();
    let question = model.question;
    let by_kind = model.by_kind(candidate);
    let shape = candidate.shape(question.job.global_batch);
    let options = recompute_choices(question);
    let runs = question.model.blocks.iter().enumerate();
    let classes: Vec<usize> = runs.flat_map(|(class, run)| std::iter::repeat_n(class, run.count)).collect();
    let mut next = classes.iter();
    let stage = |(index, blocks): (usize, &StageBlocks)| {
        let cost = &by_kind[plan.kind(schedule.rank_of(index, shape))];
        let blocks = blocks.0.iter().filter_map(|recompute| {
            let option = options.iter().position(|option| option == recompute)?;
            next.next().map(|class| &cost.blocks[*class][option])
        });
        let ends = cost.ends(candidate, plan.stages.len());
        let ends = ends.into_iter().filter(|(at, _)| *at == index).map(|(_, end)| end);
        let nothing = PassTimes { forward: Seconds::ZERO, input: Seconds::ZERO, weight: Seconds::ZERO };
        blocks.chain(ends).map(LayerCost::pass_times).fold(nothing, plus)
    };
    plan.stages.iter().enumerate().map(stage).collect()
}

fn plus(a: PassTimes, b: PassTimes) -> PassTimes {
    PassTimes { forward: a.forward + b.forward, input: a.input + b.input, weight: a.weight + b.weight }
}
