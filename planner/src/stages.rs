//! From a candidate to its best stages: the partition problem, and the plan that its solution means.

use crate::bound::update_bound;
use crate::candidate::Candidate;
use crate::layers::{LayerCost, LayerCosts, choices};
use crate::partition::{self, Choice, LayerClass, Outcome, Problem, RankLimit, Route, Run, Solution, Stage};
use crate::verdict::Question;
use std::ops::Range;
use trainwright_sim::costs::Costs;
use trainwright_spec::lower::messages_in_line;
use trainwright_spec::memory::{RankMemory, fixed_overhead, plan_memory, state_per_parameter};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::schedule::{PipelineShape, Schedule, peak_in_flight};
use trainwright_spec::units::{Bytes, Seconds};

/// How long the solver may think about one candidate. It hardly ever needs a hundredth of it.
const TIME_LIMIT: Seconds = Seconds::new(10.0);

/// What came of a candidate.
#[derive(Debug, Clone)]
pub(crate) enum Staged {
    /// Its best plan, and an estimate of the step: the partition's objective and the optimizer's update.
    Plan(Box<Plan>, Seconds),
    /// It does not fit: the rank that lacks most, what it would hold and what it can hold.
    OutOfMemory { rank: usize, needs: Bytes, has: Bytes },
    /// The solver gave up.
    Undecided,
}

/// Chooses the blocks of every stage and their recomputation.
///
/// What a rank holds for a moment beyond its kept activations depends on the choices themselves. The problem is
/// solved with the least such peak first; if the plan then turns out not to fit, with the largest.
pub(crate) fn stage(
    question: &Question,
    candidate: &Candidate,
    layers: &LayerCosts,
    costs: &impl Costs,
) -> Staged {
    let cost = layers.of(candidate);
    let empty = candidate.plan(question, Vec::new());
    let has = question.cluster.node.gpu.memory.value;
    let peaks = || cost.blocks.iter().flatten().map(|block| block.peak);
    let least = peaks().reduce(Bytes::min).unwrap_or(Bytes::ZERO);
    let most = peaks().reduce(Bytes::max).unwrap_or(Bytes::ZERO);
    let mut lacking = Staged::Undecided;
    for peak in [least, most] {
        let problem = problem(question, candidate, &empty, layers, costs, peak);
        let solution = match partition::solve(&problem, Route::Quickest, TIME_LIMIT) {
            Ok(Outcome::Solved(solution)) => solution,
            Ok(Outcome::Infeasible(partition::Infeasible::Memory { rank, needs, limit })) => {
                // A problem's rank is a stage; what one stage lacks of its share, its rank lacks once for each.
                let lacks = (needs - limit) * empty.virtual_stages as f64;
                return Staged::OutOfMemory { rank: rank % empty.mesh.pipeline, needs: has + lacks, has };
            }
            Ok(Outcome::Undecided { .. } | Outcome::Infeasible(_)) | Err(_) => return Staged::Undecided,
        };
        let plan = Plan { stages: stage_blocks(question, &solution), ..empty.clone() };
        let memory = plan_memory(&plan);
        let totals = memory.iter().map(RankMemory::total).enumerate();
        let (rank, needs) = totals.max_by(|a, b| a.1.get().total_cmp(&b.1.get())).expect("a plan has ranks");
        if needs <= has {
            let update = update_bound(&plan, cost.parameters(question), costs);
            return Staged::Plan(Box::new(plan), solution.objective + update);
        }
        lacking = Staged::OutOfMemory { rank, needs, has };
    }
    lacking
}

fn stage_blocks(question: &Question, solution: &Solution) -> Vec<StageBlocks> {
    let options = choices(question);
    let blocks = |interval: &Range<usize>| {
        StageBlocks(solution.choices[interval.clone()].iter().map(|choice| options[*choice]).collect())
    };
    solution.intervals.iter().map(blocks).collect()
}

/// The partition problem of a plan that has no stages yet, when blocks need `peak` for a moment.
///
/// With several stages per rank the schedule runs the ranks' stages in step, so that the slowest stage sets the pace:
/// each stage is a rank of the problem, with an even share of its rank's memory, of the time of its rank's embedding or
/// head, and the mean of the microbatches that its rank's stages hold.
fn problem(
    question: &Question,
    candidate: &Candidate,
    plan: &Plan,
    layers: &LayerCosts,
    costs: &impl Costs,
    peak: Bytes,
) -> Problem {
    let cost = layers.of(candidate);
    let shape = plan.pipeline_shape();
    let v = shape.virtual_stages;
    let schedule = plan.schedule();
    let (weights, gradients, optimizer) = state_per_parameter(plan);
    let state = |parameters: u64| (weights + gradients + optimizer) * parameters as f64;
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.fragmentation.value;
    let in_flight = layers.in_flight(candidate);
    let last = shape.stages() - 1;
    let (first_rank, last_rank) = (schedule.rank_of(0, shape), schedule.rank_of(last, shape));
    let message = message_time(plan, costs);
    // What a rank holds besides its blocks.
    let taken_of = |rank: usize| {
        let ends = [(first_rank, 0, &cost.embedding), (last_rank, last, &cost.head)];
        let own = ends.into_iter().filter(|(of, ..)| *of == rank);
        let held = |stage: usize| in_flight.by_stage[stage] as f64 * lost;
        let ends: Bytes =
            own.clone().map(|(_, stage, end)| state(end.parameters) + end.kept * held(stage)).sum();
        let peak = own.map(|(.., end)| end.peak).fold(peak, Bytes::max);
        ends + peak * lost + fixed_overhead(plan)
    };
    let stage_of = |index: usize| {
        let rank = schedule.rank_of(index, shape);
        let ends = [(first_rank == rank, cost.embedding.time), (last_rank == rank, cost.head.time)];
        let end: Seconds = ends.into_iter().filter(|(here, _)| *here).map(|(_, time)| time).sum();
        let neighbours = usize::from(index > 0) + usize::from(index < last);
        Stage {
            rank: index,
            // The rank has the end once, and is paced as v times its slowest stage: each stage bears a part of it.
            time: end / v as f64 + message * neighbours as f64,
            memory: taken_of(rank) / v as f64,
            in_flight: in_flight.mean[rank],
        }
    };
    let limit = RankLimit { memory: question.cluster.node.gpu.memory.value / v as f64 };
    let choice = |block: &LayerCost| Choice { time: block.time, kept: block.kept * lost, peak: Bytes::ZERO };
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
        ranks: vec![limit; shape.stages()],
        steady: weights.steady * v as f64,
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
