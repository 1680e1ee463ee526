//! From a candidate to its best stages: the partition problem, and the plan that its solution means.

mod repair;
#[cfg(test)]
mod tests;

use crate::bound::{gpu_state, update_bound};
use crate::candidate::Candidate;
use crate::layers::{Kind, LayerCost, LayerCosts, ModelCost, Parameters};
use crate::partition::{self, Choice, LayerClass, Outcome, Problem, Run, Solution, Stage};
use crate::question::Question;
use crate::space::recompute_choices;
use repair::repair;
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::lower::messages_in_line;
use trainwright_spec::memory::{
    fixed_overhead, node_memory, plan_memory, plan_memory_with, rank_memory_with,
};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::schedule::{Action, ActionKind, ActionLists, PipelineShape, Schedule};
use trainwright_spec::units::{Bytes, Seconds};

/// How long the solver may think about one candidate. It hardly ever needs a hundredth of it.
const TIME_LIMIT: Seconds = Seconds::new(10.0);

/// The part of a GPU's memory that partitions leave free, so that rounding cannot set them at odds with `plan_memory`.
const ROUNDING: f64 = 1e-8;

/// How far two counts of a rank's memory may differ by rounding.
const AGREEMENT: f64 = 1e-9;

/// What came of a candidate.
#[derive(Debug, Clone)]
pub(crate) enum Staged {
    /// Its best plan, and an estimate of the step: the partition's objective and the optimizer's update.
    Plan(Box<Plan>, Seconds),
    /// It does not fit: the rank that lacks most, what it would hold and what it can hold.
    OutOfMemory { rank: usize, needs: Bytes, has: Bytes },
    /// No split stood up to the partition's check.
    Undecided,
}

/// How often a problem is stated again with less memory when its answer does not fit.
const TIGHTENINGS: usize = 3;

/// Chooses the blocks of every stage and their recomputation.
///
/// With one stage per rank, whole backward passes and no part of weights or gradients on its way, the partition problem
/// holds all that `plan_memory` counts, and what it refuses does not fit. Else what a rank holds for a moment depends on
/// the choices themselves: the problem is solved as if it were least, and again with as much less memory as its
/// answer lacks. What is refused then may still fit: `repair` looks for a plan in the ranks' memory as it is.
pub(crate) fn stage(
    question: &Question,
    candidate: &Candidate,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Staged {
    let cost = layers.of(candidate);
    let empty = candidate.plan(question, Vec::new());
    let fitting = |plan: Plan, objective: Seconds| {
        let update = update_bound(&plan, cost.parameters(question), costs);
        match beside(&plan) {
            Some((needs, has)) => Staged::OutOfMemory { rank: 0, needs, has },
            None => Staged::Plan(Box::new(plan), objective + update),
        }
    };
    let peaks = || cost.blocks.iter().flatten().map(|block| block.peak);
    let least = peaks().reduce(Bytes::min).unwrap_or(Bytes::ZERO);
    let shape = empty.pipeline_shape();
    let whole = Measure::of(&empty, shape);
    let shorter = layers.shorter(candidate).map(|microbatches| {
        let shape = PipelineShape { microbatches, ..shape };
        // Many candidates look at the same short step.
        Measure { lists: layers.lists(candidate.schedule, shape).into(), ..Measure::of(&empty, shape) }
    });
    let measure = shorter.as_ref().unwrap_or(&whole);
    let by_stage =
        problem(question, candidate, &empty, layers, costs, Room { shared: None, reserve: Bytes::ZERO });
    let exact = is_exact(question, candidate, &by_stage, measure, layers.kind(candidate));
    let shared = if exact { None } else { Some(least) };
    let mut reserve = Bytes::ZERO;
    for _ in 0..=TIGHTENINGS {
        let room = Room { shared, reserve };
        let problem = problem(question, candidate, &empty, layers, costs, room);
        let outcome = partition::solve(&problem, TIME_LIMIT)
            .expect("a checked question's costs are finite and not negative, and its model has blocks");
        match outcome {
            Outcome::Solved(solution) => {
                let plan = Plan { stages: stage_blocks(question, &solution), ..empty.clone() };
                let full = match measure.fullest(&plan) {
                    full if full.fits() && shorter.is_some() => whole.fullest(&plan),
                    full => full,
                };
                if full.fits() {
                    return fitting(plan, solution.objective);
                }
                reserve += full.held.needs - full.held.has;
            }
            Outcome::Infeasible(partition::Infeasible::Memory { stage, needs, .. }) if exact => {
                return Staged::OutOfMemory { rank: stage, needs, has: empty.node(stage).gpu.memory.value };
            }
            Outcome::Infeasible(_) => break,
            Outcome::Undecided => return Staged::Undecided,
        }
    }
    let problem = problem(question, candidate, &empty, layers, costs, Room { shared, reserve: Bytes::ZERO });
    match repair(question, &empty, &problem, measure) {
        Ok((plan, objective)) => match whole.fullest(&plan) {
            full if full.fits() => fitting(plan, objective),
            full => full.out_of_memory(),
        },
        Err(lacking) => lacking.out_of_memory(),
    }
}

/// Whether the partition problem counts what `plan_memory` does: on each rank the same bytes for even stages that keep everything,
/// that compute everything again, and whose first or last half does. Never with several stages on a rank, or halves of backward,
/// whose peaks depend on more than the stage's own blocks.
fn is_exact(
    question: &Question,
    candidate: &Candidate,
    problem: &Problem,
    measure: &Measure,
    kind: Kind,
) -> bool {
    if !kind.ramps || kind.halves || candidate.virtual_stages > 1 {
        return false;
    }
    let options = recompute_choices(question);
    let classes: Vec<usize> =
        problem.runs.iter().flat_map(|run| std::iter::repeat_n(run.class, run.count)).collect();
    let even = candidate.even_stages(question.model.layers());
    // The first half of each stage's blocks by one choice, the others by another.
    let agrees = |[first, second]: [usize; 2]| {
        let choice = |block: usize, blocks: usize| if block < blocks / 2 { first } else { second };
        let stage = |stage: &StageBlocks| {
            let blocks = stage.0.len();
            StageBlocks((0..blocks).map(|block| options[choice(block, blocks)]).collect())
        };
        let plan = candidate.plan(question, even.iter().map(stage).collect());
        let held = measure.held(&measure.measured(plan));
        let mut next = classes.iter();
        problem.stages.iter().zip(&even).zip(&held).all(|((stage, blocks), held)| {
            let (mut counted, mut peak) = (stage.memory, stage.peak);
            for (block, class) in next.by_ref().take(blocks.0.len()).enumerate() {
                let class = &problem.classes[stage.device][*class];
                let choice = &class.choices[choice(block, blocks.0.len())];
                counted += class.state + choice.kept * stage.in_flight;
                peak = peak.max(choice.peak);
            }
            ((counted + peak) / held.needs - 1.0).abs() < AGREEMENT
        })
    };
    let last = options.len() - 1;
    [[0, 0], [last, last], [0, last], [last, 0]].into_iter().all(agrees)
}

/// What a node would hold beside its GPUs and what it can, if that is less.
fn beside(plan: &Plan) -> Option<(Bytes, Bytes)> {
    if plan.offload.is_none() {
        return None;
    }
    let node = node_memory(plan, &plan_memory(plan))?;
    let places = [(node.host, node.host_capacity), (node.nvme, node.nvme_capacity)];
    places.into_iter().find(|(needs, has)| needs > has)
}

/// What a pipeline rank holds, and what it can hold.
#[derive(Debug, Clone, Copy)]
struct Held {
    needs: Bytes,
    has: Bytes,
}

impl Held {
    fn fits(&self) -> bool {
        self.needs <= self.has
    }
}

/// The pipeline rank that has least memory left, or lacks most.
#[derive(Debug, Clone, Copy)]
struct Fullest {
    rank: usize,
    held: Held,
}

impl Fullest {
    fn of(ranks: &[Held]) -> Self {
        let lacks = |held: &Held| (held.needs - held.has).get();
        let ranks = ranks.iter().enumerate();
        let (rank, held) = ranks.max_by(|a, b| lacks(a.1).total_cmp(&lacks(b.1))).expect("a plan has ranks");
        Self { rank, held: *held }
    }

    fn fits(&self) -> bool {
        self.held.fits()
    }

    fn out_of_memory(&self) -> Staged {
        let Held { needs, has } = self.held;
        Staged::OutOfMemory { rank: self.rank, needs, has }
    }
}

/// How full the ranks of plans are that differ in their stages alone.
struct Measure {
    /// Of the step that is looked at, which may be a shorter one.
    global_batch: usize,
    shape: PipelineShape,
    /// Made when they are first needed.
    lists: OnceCell<Arc<ActionLists>>,
}

impl Measure {
    /// Of steps of such a shape.
    fn of(plan: &Plan, shape: PipelineShape) -> Self {
        let global_batch = shape.microbatches * plan.micro_batch * plan.mesh.data;
        Self { global_batch, shape, lists: OnceCell::new() }
    }

    /// The plan with the step that is looked at.
    fn measured(&self, mut plan: Plan) -> Plan {
        plan.job.global_batch = self.global_batch;
        plan
    }

    fn lists(&self, plan: &Plan) -> &ActionLists {
        self.lists.get_or_init(|| Arc::new(plan.schedule().lists(self.shape)))
    }

    /// By rank of such a plan.
    fn held(&self, plan: &Plan) -> Vec<Held> {
        let memory = plan_memory_with(plan, self.lists(plan));
        let ranks = memory.iter().enumerate();
        ranks.map(|(rank, memory)| Held { needs: memory.total(), has: capacity(plan, rank) }).collect()
    }

    /// Of one rank.
    fn held_by(&self, plan: &Plan, rank: usize) -> Held {
        let memory = rank_memory_with(plan, self.lists(plan), rank);
        Held { needs: memory.total(), has: capacity(plan, rank) }
    }

    fn fullest(&self, plan: &Plan) -> Fullest {
        Fullest::of(&self.held(&self.measured(plan.clone())))
    }
}

fn capacity(plan: &Plan, rank: usize) -> Bytes {
    plan.node(rank).gpu.memory.value
}

fn stage_blocks(question: &Question, solution: &Solution) -> Vec<StageBlocks> {
    let options = recompute_choices(question);
    let blocks = |interval: &Range<usize>| {
        StageBlocks(solution.choices[interval.clone()].iter().map(|choice| options[*choice]).collect())
    };
    solution.intervals.iter().map(blocks).collect()
}

/// What a partition problem says about memory that its layers do not.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// What blocks need for a moment, once per rank; none if each stage counts that of its own blocks.
    shared: Option<Bytes>,
    /// What a rank is left short of.
    reserve: Bytes,
}

/// The partition problem of a plan that has no stages yet.
///
/// With several stages per rank the schedule runs the ranks' stages in step, so that the slowest stage sets the pace:
/// each has an even share of its rank's memory, of the time of its rank's embedding or head, and the mean of the
/// microbatches that its rank's stages hold. So has each of two copies of a stage.
fn problem(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
    room: Room,
) -> Problem {
    let (kind, shape) = (layers.kind(candidate), plan.pipeline_shape());
    let v = shape.virtual_stages as f64;
    let shares = v * kind.copies as f64;
    let schedule = plan.schedule();
    let state = |layer: &LayerCost| gpu_state(plan, Parameters::of(layer));
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.fragmentation.value;
    let in_flight = layers.in_flight(candidate);
    let last = shape.stages() - 1;
    let message = message_time(plan, costs);
    let by_kind = layers.by_kind(candidate);
    let stage_of = |index: usize| {
        let rank = schedule.rank_of(index, shape);
        let device = plan.kind(rank);
        let cost = &by_kind[device];
        let limit = plan.node(rank).gpu.memory.value * (1.0 - ROUNDING) - room.reserve;
        let ends = [(0, &cost.embedding), (last, cost.head_of(candidate))];
        let own = ends.into_iter().filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank);
        let held = |stage: usize| in_flight.by_stage[stage] as f64 * lost;
        let memory: Bytes = own.clone().map(|(stage, end)| state(end) + end.kept * held(stage)).sum();
        let peak = own.clone().map(|(_, end)| end.peak).fold(room.shared.unwrap_or(Bytes::ZERO), Bytes::max);
        let neighbours = usize::from(index > 0) + usize::from(index < last);
        Stage {
            // The rank has an end once, and is paced as v times its slowest stage: each stage bears a part of it.
            time: own.map(|(_, end)| end.time).sum::<Seconds>() / v + message * neighbours as f64,
            memory: (memory * kind.copies as f64 + fixed_overhead(plan)) / shares,
            peak: peak * lost / shares,
            in_flight: in_flight.mean[rank],
            limit: limit / shares,
            device,
        }
    };
    let stays = if plan.offload.activations.is_some() { 0.0 } else { lost };
    let choice = |block: &LayerCost| Choice {
        time: block.time,
        kept: block.kept * stays,
        peak: if room.shared.is_none() { block.peak * lost } else { Bytes::ZERO },
    };
    let class = |choices: &Vec<LayerCost>| LayerClass {
        state: state(&choices[0]),
        choices: choices.iter().map(choice).collect(),
    };
    let on = |cost: &ModelCost| cost.blocks.iter().map(class).collect();
    let runs = question.model.blocks.iter().enumerate();
    // In step, m microbatches pass v stages of the slowest stage's time each, and the ramp one stage of each rank.
    let weights = schedule.partition_weights(shape);
    Problem {
        runs: runs.map(|(class, run)| Run { class, count: run.count }).collect(),
        classes: by_kind.iter().map(on).collect(),
        stages: (0..shape.stages()).map(stage_of).collect(),
        steady: weights.steady * v,
        ramp: weights.ramp,
    }
}

/// Microbatches that stages hold whole when their rank holds most of them: from forward to the end of backward, or to
/// the end of its first half.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    /// By stage, copies counted.
    pub by_stage: Vec<usize>,
    /// By pipeline rank: the mean over its stages.
    pub mean: Vec<f64>,
    /// By pipeline rank: the least over its stages.
    pub least: Vec<f64>,
    /// By pipeline rank: the moments at which it holds most, by several measures.
    pub moments: Vec<Vec<Moment>>,
}

/// What the stages of a pipeline rank hold at one moment.
pub(crate) type Moment = Vec<HeldOf>;

/// Microbatches that a stage holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldOf {
    /// Which one, copies counted.
    pub stage: usize,
    /// From forward to backward, or to its first half.
    pub kept: f64,
    /// Between the halves of backward.
    pub between: f64,
}

impl HeldOf {
    /// Bytes that they make of a layer.
    pub fn of(&self, layer: &LayerCost) -> f64 {
        self.kept * layer.kept.get() + self.between * layer.between.get()
    }
}

/// How much what is held between the halves of backward may weigh against activations.
const MEASURES: [f64; 3] = [0.0, 1.0, 100.0];

impl InFlight {
    pub fn of(schedule: &dyn Schedule, shape: PipelineShape) -> Self {
        let stages = schedule.copies() * shape.stages();
        let mut by_stage = vec![0; stages];
        let (mut mean, mut least, mut moments) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, actions) in schedule.lists(shape).ranks.into_iter().enumerate() {
            let own: Vec<usize> =
                (0..stages).filter(|stage| schedule.rank_of(*stage, shape) == rank).collect();
            moments.push(MEASURES.map(|weight| fullest_moment(&actions, &own, weight)).to_vec());
            let mut held = vec![0usize; stages];
            let (mut now, mut most) = (0usize, 0);
            for action in actions {
                match action.kind {
                    ActionKind::Forward => (held[action.stage], now) = (held[action.stage] + 1, now + 1),
                    ActionKind::Backward | ActionKind::Input => {
                        (held[action.stage], now) = (held[action.stage] - 1, now - 1);
                    }
                    ActionKind::Weight => {}
                }
                if now > most {
                    most = now;
                    own.iter().for_each(|stage| by_stage[*stage] = held[*stage]);
                }
            }
            mean.push(most as f64 / own.len() as f64);
            least.push(own.iter().map(|stage| by_stage[*stage]).min().unwrap_or(0) as f64);
        }
        Self { by_stage, mean, least, moments }
    }
}

/// When a rank with some stages holds most, what is between the halves of backward weighed.
fn fullest_moment(actions: &[Action], own: &[usize], weight: f64) -> Moment {
    let mut now: Moment = own.iter().map(|stage| HeldOf { stage: *stage, kept: 0.0, between: 0.0 }).collect();
    let (mut fullest, mut most) = (now.clone(), 0.0);
    for action in actions {
        let Some(held) = now.iter_mut().find(|held| held.stage == action.stage) else { continue };
        match action.kind {
            ActionKind::Forward => held.kept += 1.0,
            ActionKind::Backward => held.kept -= 1.0,
            ActionKind::Input => (held.kept, held.between) = (held.kept - 1.0, held.between + 1.0),
            ActionKind::Weight => held.between -= 1.0,
        }
        let total: f64 = now.iter().map(|held| held.kept + weight * held.between).sum();
        if total > most {
            (fullest, most) = (now.clone(), total);
        }
    }
    fullest
}

/// What a message to a neighbouring stage takes from a rank's kernels: nothing where it travels beside them.
fn message_time(plan: &Plan, costs: &impl Costs) -> Seconds {
    match messages_in_line(plan) {
        // Forward sends what backward receives: one of the two is this rank's own send.
        Some(bytes) if plan.mesh.pipeline > 1 => {
            let work = QueryWork::Message { bytes, to: plan.mesh.first_of(1), blocking: true };
            costs.cost(&Query { rank: 0, op: None, work }).time
        }
        _ => Seconds::ZERO,
    }
}
