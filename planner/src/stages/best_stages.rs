//! The best stages of a candidate: solves its partition problem until the answer fits as `plan_memory` counts.

use super::partition_problem::{MemoryTerms, counts_all_memory, problem};
use super::rank_memory::{MemoryMeter, RankMemoryUse};
use super::repair::{recompute_less, repair};
use crate::bound::update_bound;
use crate::candidate::Candidate;
use crate::cost::CostModel;
use crate::partition::{self, Outcome, Solution};
use crate::question::Question;
use crate::risk::{Idle, IdlePlace, Outlook};
use crate::space::recompute_choices;
use std::ops::Range;
use trainwright_lower::memory::{RankMemory, divisor, most_on_a_node, node_memory, plan_memory};
use trainwright_sim::Stop;
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::program::{Axis, Place};
use trainwright_spec::schedule::PipelineShape;
use trainwright_spec::units::{Bytes, Seconds};

/// How long the solver may think about one candidate, which no stop interrupts: shortest paths then find the same split. It
/// hardly ever needs a hundredth of it.
const TIME_LIMIT: Seconds = Seconds::new(0.2);

/// How often a problem is stated again with less memory when its answer does not fit.
const TIGHTENINGS: usize = 3;

/// What came of a candidate.
#[derive(Debug, Clone)]
pub(crate) enum Staged {
    /// Its best plan, and an estimate of the step: the partition's objective and the optimizer's update.
    Plan(Box<Plan>, Seconds),
    /// It does not fit: the rank that lacks most.
    OutOfMemory(RankMemoryUse),
    /// No split stood up to the partition's check.
    Undecided,
}

/// Chooses the blocks of every stage and their recomputation.
///
/// With one stage per rank, undivided backward passes and no part of weights or gradients on its way, the partition problem
/// holds all that `plan_memory` counts, and what it refuses does not fit. Else a rank's peak depends on the choices
/// themselves: the problem is solved as if it were least, and again with as much less memory as its answer lacks. What is
/// refused then may still fit: `repair` looks for a plan in the ranks' memory as it is.
///
/// `None` if it was stopped.
pub(crate) fn stage(model: &CostModel, candidate: &Candidate, stop: Stop) -> Option<Staged> {
    let (question, cost) = (model.question, model.of(candidate));
    let empty = candidate.plan(question, Vec::new());
    if let Some(shortage) = certain_shortage(model, candidate, &empty) {
        return Some(Staged::OutOfMemory(shortage));
    }
    let outlook = model.outlook(candidate);
    let limits = MemoryLimits::of(model, candidate, &empty);
    let meter = limits.meter();
    let fitting = |plan: Plan, objective: Seconds| {
        let update = update_bound(&plan, cost.parameters(question), &model.costs);
        match node_shortage(&plan, outlook) {
            Some(shortage) => Staged::OutOfMemory(shortage),
            None => Staged::Plan(Box::new(plan), objective + update),
        }
    };
    let by_stage = problem(model, candidate, &empty, MemoryTerms { shared_peak: None, reserve: Bytes::ZERO });
    let exact = counts_all_memory(model, candidate, &by_stage, meter);
    let peaks = cost.blocks.iter().flatten().map(|block| block.peak);
    let shared_peak = if exact { None } else { Some(peaks.reduce(Bytes::min).unwrap_or(Bytes::ZERO)) };
    let mut reserve = Bytes::ZERO;
    for _ in 0..=TIGHTENINGS {
        if stop() {
            return None;
        }
        let problem = problem(model, candidate, &empty, MemoryTerms { shared_peak, reserve });
        let outcome = partition::solve(&problem, TIME_LIMIT)
            .expect("a checked question's costs are finite and not negative, and its model has blocks");
        match outcome {
            Outcome::Solved(solution) => {
                let plan = Plan { stages: stage_blocks(question, &solution), ..empty.clone() };
                let fullest = limits.fullest(&plan);
                if fullest.fits() {
                    if exact {
                        return Some(fitting(plan, solution.objective));
                    }
                    let (faster, objective) = recompute_less(question, &plan, &problem, meter, stop)?;
                    return Some(match limits.fullest(&faster).fits() {
                        true => fitting(faster, objective),
                        false => fitting(plan, solution.objective),
                    });
                }
                reserve += fullest.needs - fullest.has;
            }
            Outcome::Infeasible(partition::Infeasible::Memory { stage, needs, .. }) if exact => {
                let has = outlook.room(empty.node(stage).gpu.memory.value);
                return Some(Staged::OutOfMemory(RankMemoryUse { rank: stage, place: None, needs, has }));
            }
            Outcome::Infeasible(_) => break,
            Outcome::Undecided => return Some(Staged::Undecided),
        }
    }
    let problem = problem(model, candidate, &empty, MemoryTerms { shared_peak, reserve: Bytes::ZERO });
    Some(match repair(question, &empty, &problem, meter, stop)? {
        Ok((plan, objective)) => match limits.full_step.fullest(&plan) {
            fullest if fullest.fits() => fitting(plan, objective),
            fullest => Staged::OutOfMemory(fullest),
        },
        Err(fullest) => Staged::OutOfMemory(fullest),
    })
}

/// The memory of a candidate's ranks, with as short a step as shows all.
pub(crate) struct MemoryLimits {
    full_step: MemoryMeter,
    /// Looks at less than the full step; `None` if no shorter one has as many microbatches in flight.
    shorter_step: Option<MemoryMeter>,
    outlook: Outlook,
}

impl MemoryLimits {
    /// `empty` is the candidate's plan without stages.
    pub fn of(model: &CostModel, candidate: &Candidate, empty: &Plan) -> Self {
        let (shape, outlook) = (empty.pipeline_shape(), model.outlook(candidate));
        let shorter_step = model.pipelines.shorter(candidate).map(|microbatches| {
            let shape = PipelineShape { microbatches, ..shape };
            // Many candidates look at the same short step.
            let lists = model.pipelines.lists(candidate.schedule, shape);
            MemoryMeter::of(empty, shape, outlook).with_lists(lists)
        });
        Self { full_step: MemoryMeter::of(empty, shape, outlook), shorter_step, outlook: *outlook }
    }

    /// Whether every rank of a plan, and every node for what is offloaded, has enough.
    pub fn fit(&self, plan: &Plan) -> bool {
        self.fullest(plan).fits() && node_shortage(plan, &self.outlook).is_none()
    }

    /// The meter of the shorter step if there is one.
    fn meter(&self) -> &MemoryMeter {
        self.shorter_step.as_ref().unwrap_or(&self.full_step)
    }

    /// The fullest rank; of the full step, if the shorter one fits.
    pub(super) fn fullest(&self, plan: &Plan) -> RankMemoryUse {
        match &self.shorter_step {
            Some(shorter) => match shorter.fullest(plan) {
                fullest if fullest.fits() => self.full_step.fullest(plan),
                fullest => fullest,
            },
            None => self.full_step.fullest(plan),
        }
    }
}

/// What a node would hold off its GPUs, in a step or between steps, and what it can, if that is less.
fn node_shortage(plan: &Plan, outlook: &Outlook) -> Option<RankMemoryUse> {
    let idle = outlook.idle.filter(|idle| idle.place == IdlePlace::Host);
    if plan.offload.is_none() && idle.is_none() {
        return None;
    }
    let ranks = plan_memory(plan);
    shortage_of(plan, &ranks).or_else(|| idle_shortage(plan, &ranks, idle?))
}

/// The same of state that is on the host between steps.
fn idle_shortage(plan: &Plan, ranks: &[RankMemory], idle: Idle) -> Option<RankMemoryUse> {
    let has = plan.cluster.node.processors.as_ref()?.memory.value;
    let needs = most_on_a_node(plan, |gpu| {
        let memory = &ranks[plan.mesh.coordinates(gpu).pipeline];
        idle.on_host(memory.weights, memory.optimizer)
    });
    (needs > has).then_some(RankMemoryUse { rank: 0, place: Some(Place::Host), needs, has })
}

/// What the mean node lacks for optimizer state and its gradients off the GPUs, however the stages of a candidate are split.
pub(crate) fn certain_shortage(
    model: &CostModel,
    candidate: &Candidate,
    empty: &Plan,
) -> Option<RankMemoryUse> {
    let offload = &empty.offload;
    let place = offload.optimizer?;
    let parameters = model.of(candidate).parameters(model.question);
    let shared = |axis, count: f64| match empty.shards_optimizer() {
        true => count / divisor(empty, axis) as f64,
        false => count,
    };
    let updated = shared(Axis::Data, parameters.dense) + shared(Axis::ExpertData, parameters.routed);
    let of_mean_rank = empty.schedule().copies() as f64 / empty.mesh.pipeline as f64;
    let state = empty.state_bytes();
    let gradients = if offload.gradients_place() == place { state.gradient } else { Bytes::ZERO };
    let bytes = (state.optimizer() + gradients) * (updated * offload.updated_by_host() * of_mean_rank);
    // What rounding may add is no shortage.
    let bytes = bytes * (1.0 - 1e-9);
    let rank = match place {
        Place::Host => RankMemory { host: bytes, ..RankMemory::default() },
        Place::Nvme => RankMemory { nvme: bytes, ..RankMemory::default() },
    };
    shortage_of(empty, &vec![rank; empty.mesh.pipeline])
}

/// What a node would hold off its GPUs and what it can, if that is less.
fn shortage_of(plan: &Plan, ranks: &[RankMemory]) -> Option<RankMemoryUse> {
    let node = node_memory(plan, ranks)?;
    let stores = [(Place::Host, node.host, node.host_capacity), (Place::Nvme, node.nvme, node.nvme_capacity)];
    let (place, needs, has) = stores.into_iter().find(|(_, needs, has)| needs > has)?;
    Some(RankMemoryUse { rank: 0, place: Some(place), needs, has })
}

fn stage_blocks(question: &Question, solution: &Solution) -> Vec<StageBlocks> {
    let options = recompute_choices(question);
    let blocks = |interval: &Range<usize>| {
        StageBlocks(solution.choices[interval.clone()].iter().map(|choice| options[*choice]).collect())
    };
    solution.intervals.iter().map(blocks).collect()
}
