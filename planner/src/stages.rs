//! From a candidate to its best stages: the partition problem, and the plan that its solution means.

use crate::candidate::Candidate;
use crate::layers::{ModelCost, choices};
use crate::partition::{self, Choice, LayerClass, Outcome, Problem, RankLimit, Run, Solution, Stage};
use crate::verdict::Question;
use trainwright_sim::costs::Costs;
use trainwright_spec::lower::messages_in_line;
use trainwright_spec::memory::{fixed_overhead, state_per_parameter};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::schedule::{peak_in_flight, schedule};
use trainwright_spec::units::{Bytes, Seconds};

/// How long the solver may think about one candidate. It hardly ever needs a hundredth of it.
const TIME_LIMIT: Seconds = Seconds::new(10.0);

/// What came of a candidate.
#[derive(Debug, Clone)]
pub(crate) enum Staged {
    /// Its best plan.
    Plan(Box<Plan>, Solution),
    /// It does not fit: the rank that lacks most, what it would hold and what it can hold.
    OutOfMemory { rank: usize, needs: Bytes, has: Bytes },
    /// The solver gave up.
    Undecided,
}

/// Chooses the blocks of every stage and their recomputation.
pub(crate) fn stage(
    question: &Question,
    candidate: &Candidate,
    cost: &ModelCost,
    costs: &impl Costs,
) -> Staged {
    let empty = candidate.plan(question, Vec::new());
    let overhead = fixed_overhead(&empty);
    let gpu = question.cluster.node.gpu.memory.value;
    let problem = problem(question, &empty, cost, costs);
    match partition::solve(&problem, TIME_LIMIT) {
        Ok(Outcome::Solved(solution)) => {
            let options = choices(question);
            let blocks = |interval: &std::ops::Range<usize>| {
                StageBlocks(solution.choices[interval.clone()].iter().map(|choice| options[*choice]).collect())
            };
            let stages = solution.intervals.iter().map(blocks).collect();
            Staged::Plan(Box::new(Plan { stages, ..empty }), solution)
        }
        Ok(Outcome::Infeasible(partition::Infeasible::Memory { rank, needs, .. })) => {
            Staged::OutOfMemory { rank, needs: needs + overhead, has: gpu }
        }
        Ok(Outcome::Undecided { .. } | Outcome::Infeasible(_)) | Err(_) => Staged::Undecided,
    }
}

/// The partition problem of a plan that has no stages yet.
fn problem(question: &Question, plan: &Plan, cost: &ModelCost, costs: &impl Costs) -> Problem {
    let shape = plan.pipeline_shape();
    let schedule = schedule(&plan.schedule).expect("candidates have schedules of the registry");
    let (weights, gradients, optimizer) = state_per_parameter(plan);
    let state = |parameters: u64| (weights + gradients + optimizer) * parameters as f64;
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.fragmentation.value;
    let in_flight = peak_in_flight(schedule, shape, |_| 1.0);
    let last = shape.stages() - 1;
    let message = message_time(plan, costs);
    let stages = (0..shape.stages()).map(|index| {
        let ends = [(index == 0, &cost.embedding), (index == last, &cost.head)];
        let here = ends.into_iter().filter(|(here, _)| *here).map(|(_, end)| end);
        let neighbours = usize::from(index > 0) + usize::from(index < last);
        let held = in_flight[index] as f64;
        Stage {
            rank: schedule.rank_of(index, shape),
            time: here.clone().map(|end| end.time).sum::<Seconds>() + message * neighbours as f64,
            memory: here.map(|end| state(end.parameters) + end.kept * (held * lost)).sum(),
            in_flight: held,
        }
    });
    // The head's and the embedding's own temporaries are held on ranks that may hold any layer.
    let room = question.cluster.node.gpu.memory.value - fixed_overhead(plan);
    let limit = |rank: usize| {
        let first = schedule.rank_of(0, shape) == rank;
        let end = if schedule.rank_of(last, shape) == rank { cost.head.peak } else { Bytes::ZERO };
        let start = if first { cost.embedding.peak } else { Bytes::ZERO };
        let least = cost.blocks.iter().flatten().map(|block| block.peak).reduce(Bytes::min);
        let beyond = (end.max(start) - least.unwrap_or(Bytes::ZERO)).max(Bytes::ZERO);
        RankLimit { memory: (room - beyond * lost).max(Bytes::ZERO) }
    };
    let classes = cost.blocks.iter().map(|choices| LayerClass {
        state: state(choices[0].parameters),
        choices: choices
            .iter()
            .map(|choice| Choice { time: choice.time, kept: choice.kept * lost, peak: choice.peak * lost })
            .collect(),
    });
    let runs = question.model.blocks.iter().enumerate();
    let weights = schedule.partition_weights(shape);
    Problem {
        runs: runs.map(|(class, run)| Run { class, count: run.count }).collect(),
        classes: classes.collect(),
        stages: stages.collect(),
        ranks: (0..shape.ranks).map(limit).collect(),
        steady: weights.steady,
        ramp: weights.ramp,
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
