//! From a candidate to its best stages: the partition problem, and the plan that its solution means.

mod repair;
#[cfg(test)]
mod tests;

use crate::bound::update_bound;
use crate::candidate::Candidate;
use crate::layers::{LayerCost, LayerCosts, choices};
use crate::partition::{self, Choice, LayerClass, Outcome, Problem, Run, Solution, Stage};
use crate::verdict::Question;
use repair::repair;
use std::ops::Range;
use trainwright_sim::costs::Costs;
use trainwright_spec::lower::messages_in_line;
use trainwright_spec::memory::{RankMemory, fixed_overhead, plan_memory, state_per_parameter};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::program::Axis;
use trainwright_spec::schedule::{PipelineShape, Schedule, peak_in_flight};
use trainwright_spec::units::{Bytes, Seconds};

/// How long the solver may think about one candidate. It hardly ever needs a hundredth of it.
const TIME_LIMIT: Seconds = Seconds::new(10.0);

/// The part of a GPU's memory that partitions leave free, so that rounding cannot set them at odds with `plan_memory`.
const ROUNDING: f64 = 1e-8;

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

/// Chooses the blocks of every stage and their recomputation.
///
/// With one stage per rank, the partition problem holds all that `plan_memory` counts. With several, the stages of a rank
/// share what its blocks need for a moment, which depends on the choices themselves: the problem is solved with the least
/// such peak first, and if that plan does not fit, with the largest. What each stage's even share of its rank then rules
/// out may still fit: `repair` looks for a plan in the ranks' memory as it is.
pub(crate) fn stage(
    question: &Question,
    candidate: &Candidate,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Staged {
    let cost = layers.of(candidate);
    let empty = candidate.plan(question, Vec::new());
    let has = question.cluster.node.gpu.memory.value;
    let fitting = |plan: Plan, objective: Seconds| {
        let update = update_bound(&plan, cost.parameters(question), costs);
        Staged::Plan(Box::new(plan), objective + update)
    };
    let peaks = || cost.blocks.iter().flatten().map(|block| block.peak);
    let least = peaks().reduce(Bytes::min).unwrap_or(Bytes::ZERO);
    let most = peaks().reduce(Bytes::max).unwrap_or(Bytes::ZERO);
    let shared = if empty.virtual_stages == 1 { vec![None] } else { vec![Some(least), Some(most)] };
    for peak in shared {
        let problem = problem(question, candidate, &empty, layers, costs, peak);
        let outcome = partition::solve(&problem, TIME_LIMIT)
            .expect("a checked question's costs are finite and not negative, and its model has blocks");
        match outcome {
            Outcome::Solved(solution) => {
                let plan = Plan { stages: stage_blocks(question, &solution), ..empty.clone() };
                if fullest(&plan).1 <= has {
                    return fitting(plan, solution.objective);
                }
            }
            Outcome::Infeasible(partition::Infeasible::Memory { stage, needs, .. }) if peak.is_none() => {
                return Staged::OutOfMemory { rank: stage, needs, has };
            }
            Outcome::Infeasible(_) => break,
            Outcome::Undecided => return Staged::Undecided,
        }
    }
    let problem = problem(question, candidate, &empty, layers, costs, Some(least));
    match repair(question, &empty, &problem) {
        Ok((plan, objective)) => fitting(plan, objective),
        Err((rank, needs)) => Staged::OutOfMemory { rank, needs, has },
    }
}

/// The pipeline rank that holds most, and how much.
fn fullest(plan: &Plan) -> (usize, Bytes) {
    let memory = plan_memory(plan);
    let totals = memory.iter().map(RankMemory::total).enumerate();
    totals.max_by(|a, b| a.1.get().total_cmp(&b.1.get())).expect("a plan has ranks")
}

fn stage_blocks(question: &Question, solution: &Solution) -> Vec<StageBlocks> {
    let options = choices(question);
    let blocks = |interval: &Range<usize>| {
        StageBlocks(solution.choices[interval.clone()].iter().map(|choice| options[*choice]).collect())
    };
    solution.intervals.iter().map(blocks).collect()
}

/// The partition problem of a plan that has no stages yet.
///
/// With several stages per rank the schedule runs the ranks' stages in step, so that the slowest stage sets the pace:
/// each has an even share of its rank's memory, of the time of its rank's embedding or head, and the mean of the
/// microbatches that its rank's stages hold. What blocks need for a moment is then taken to be `shared`, once per rank.
fn problem(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
    shared: Option<Bytes>,
) -> Problem {
    let cost = layers.of(candidate);
    let shape = plan.pipeline_shape();
    let v = shape.virtual_stages as f64;
    let schedule = plan.schedule();
    let per_parameter = state_per_parameter(plan, Axis::Data).total();
    let state = |parameters: u64| per_parameter * parameters as f64;
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.fragmentation.value;
    let in_flight = layers.in_flight(candidate);
    let last = shape.stages() - 1;
    let message = message_time(plan, costs);
    let stage_of = |index: usize| {
        let rank = schedule.rank_of(index, shape);
        let ends = [(0, &cost.embedding), (last, &cost.head)];
        let own = ends.into_iter().filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank);
        let held = |stage: usize| in_flight.by_stage[stage] as f64 * lost;
        let memory: Bytes =
            own.clone().map(|(stage, end)| state(end.parameters) + end.kept * held(stage)).sum();
        let peak = own.clone().map(|(_, end)| end.peak).fold(shared.unwrap_or(Bytes::ZERO), Bytes::max);
        let neighbours = usize::from(index > 0) + usize::from(index < last);
        Stage {
            // The rank has an end once, and is paced as v times its slowest stage: each stage bears a part of it.
            time: own.map(|(_, end)| end.time).sum::<Seconds>() / v + message * neighbours as f64,
            memory: (memory + fixed_overhead(plan)) / v,
            peak: peak * lost / v,
            in_flight: in_flight.mean[rank],
            limit: question.cluster.node.gpu.memory.value * (1.0 - ROUNDING) / v,
        }
    };
    let choice = |block: &LayerCost| Choice {
        time: block.time,
        kept: block.kept * lost,
        peak: if shared.is_none() { block.peak * lost } else { Bytes::ZERO },
    };
    let classes = cost.blocks.iter().map(|choices| LayerClass {
        state: state(choices[0].parameters),
        choices: choices.iter().map(choice).collect(),
    });
    let runs = question.model.blocks.iter().enumerate();
    // In step, m microbatches pass v stages of the slowest stage's time each, and the ramp one stage of each rank.
    let weights = schedule.partition_weights(shape);
    Problem {
        runs: runs.map(|(class, run)| Run { class, count: run.count }).collect(),
        classes: classes.collect(),
        stages: (0..shape.stages()).map(stage_of).collect(),
        steady: weights.steady * v,
        ramp: weights.ramp,
    }
}

/// Microbatches that stages hold at their rank's peak.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    /// By stage.
    pub by_stage: Vec<usize>,
    /// By pipeline rank: the mean over its stages.
    pub mean: Vec<f64>,
}

impl InFlight {
    pub fn of(schedule: &dyn Schedule, shape: PipelineShape) -> Self {
        let by_stage = peak_in_flight(schedule, shape, |_| 1.0);
        let mut mean = vec![0.0; shape.ranks];
        for (stage, microbatches) in by_stage.iter().enumerate() {
            mean[schedule.rank_of(stage, shape)] += *microbatches as f64 / shape.virtual_stages as f64;
        }
        Self { by_stage, mean }
    }
}

/// What a message to a neighbouring stage takes from a rank's kernels: nothing where it travels beside them.
fn message_time(plan: &Plan, costs: &impl Costs) -> Seconds {
    match messages_in_line(plan) {
        // Forward sends what backward receives: one of the two is this rank's own send.
        Some(bytes) if plan.mesh.pipeline > 1 => costs.message(bytes, 0, plan.mesh.tensor * plan.mesh.data),
        _ => Seconds::ZERO,
    }
}
