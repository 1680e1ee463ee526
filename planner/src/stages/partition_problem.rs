//! The partition problem of a candidate, in seconds and bytes.

use super::rank_memory::MemoryMeter;
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, ModelCost, Parameters};
use crate::partition::{Choice, LayerClass, Problem, Run, Stage};
use crate::risk::Idle;
use crate::space::recompute_choices;
use trainwright_lower::memory::fixed_overhead;
use trainwright_lower::messages_in_line;
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::units::{Bytes, Seconds};

/// The part of a GPU's memory that partitions leave free, so that rounding cannot set them at odds with `plan_memory`.
const ROUNDING: f64 = 1e-8;

/// How far two counts of a rank's memory may differ by rounding.
const AGREEMENT: f64 = 1e-9;

/// What a partition problem says about memory that its layers do not.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryTerms {
    /// What the backward of blocks holds beyond activations, once per rank; `None` if each stage counts that of its own
    /// blocks.
    pub shared_peak: Option<Bytes>,
    /// Bytes of every rank that the problem must leave free.
    pub reserve: Bytes,
}

/// The partition problem of a plan that has no stages yet.
///
/// With several stages per rank the schedule runs the ranks' stages in step, so that the slowest stage sets the pace:
/// each has an even share of its rank's memory, of the time of its rank's embedding or head, and the mean of the
/// microbatches that its rank's stages hold. So has each of two copies of a stage.
pub(super) fn problem(model: &CostModel, candidate: &Candidate, plan: &Plan, terms: MemoryTerms) -> Problem {
    let (kind, shape) = (model.pipelines.kind(candidate), plan.pipeline_shape());
    let v = shape.virtual_stages as f64;
    let shares = v * kind.copies as f64;
    let schedule = plan.schedule();
    let outlook = model.outlook(candidate);
    let state = |layer: &LayerCost| Parameters::of(layer).gpu_state(plan);
    let idle = |layer: &LayerCost| -> Bytes {
        let on_gpu = |idle: Idle| {
            let [weights, gradients, optimizer] = Parameters::of(layer).gpu_state_by_kind(plan);
            idle.beside().map(|_| idle.on_gpu(weights, gradients, optimizer))
        };
        outlook.idle.and_then(on_gpu).unwrap_or(Bytes::ZERO)
    };
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.lost_part(plan.mesh.tensor);
    let in_flight = model.pipelines.in_flight(candidate);
    let stages = shape.stages();
    let message = message_time(model, plan);
    let by_kind = model.by_kind(candidate);
    let stage = |index: usize| {
        let rank = schedule.rank_of(index, shape);
        let device = plan.kind(rank);
        let gpu = plan.node(rank).gpu.memory.value;
        let limit = outlook.room(gpu) * (1.0 - ROUNDING) - terms.reserve;
        let others = outlook.idle.and_then(|idle| idle.beside());
        let idle_limit = others.map_or(Bytes::new(f64::INFINITY), |others| gpu * (1.0 - ROUNDING) - others);
        let ends = by_kind[device].ends(candidate, stages).into_iter();
        let ends = ends.filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank);
        let held = |stage: usize| in_flight.by_stage[stage] as f64 * lost;
        let memory: Bytes = ends.clone().map(|(stage, end)| state(end) + end.kept * held(stage)).sum();
        let idle_ends: Bytes = ends.clone().map(|(_, end)| idle(end)).sum();
        let shared_peak = terms.shared_peak.unwrap_or(Bytes::ZERO);
        let peak = ends.clone().map(|(_, end)| end.peak).fold(shared_peak, Bytes::max);
        let neighbours = usize::from(index > 0) + usize::from(index + 1 < stages);
        Stage {
            // The rank has an end once, and is paced as v times its slowest stage: each stage bears a part of it.
            time: ends.map(|(_, end)| end.time).sum::<Seconds>() / v + message * neighbours as f64,
            memory: (memory * kind.copies as f64 + fixed_overhead(plan)) / shares,
            peak: peak * lost / shares,
            in_flight: in_flight.mean[rank],
            limit: limit / shares,
            idle: idle_ends * kind.copies as f64 / shares,
            idle_limit: idle_limit / shares,
            device,
            // The first may have the embedding alone, the last the head.
            least_layers: usize::from((index > 0 && index + 1 < stages) || stages == 1),
        }
    };
    let stays = if plan.offload.activations.is_some() { 0.0 } else { lost };
    let choice = |block: &LayerCost| Choice {
        time: block.time,
        kept: block.kept * stays,
        peak: if terms.shared_peak.is_none() { block.peak * lost } else { Bytes::ZERO },
    };
    let class = |choices: &Vec<LayerCost>| LayerClass {
        state: state(&choices[0]),
        idle: idle(&choices[0]),
        choices: choices.iter().map(choice).collect(),
    };
    let on = |cost: &ModelCost| cost.blocks.iter().map(class).collect();
    let runs = model.question.model.blocks.iter().enumerate();
    // In step, m microbatches pass v stages of the slowest stage's time each, and the ramp one stage of each rank.
    let weights = schedule.partition_weights(shape);
    Problem {
        runs: runs.map(|(class, run)| Run { class, count: run.count }).collect(),
        classes: by_kind.iter().map(on).collect(),
        stages: (0..stages).map(stage).collect(),
        steady: weights.steady * v,
        ramp: weights.ramp,
    }
}

/// What a message to a neighbouring stage takes from a rank's kernels: nothing where it travels while they run.
fn message_time(model: &CostModel, plan: &Plan) -> Seconds {
    match messages_in_line(plan) {
        // Forward sends what backward receives: this rank sends one of the two.
        Some(bytes) if plan.mesh.pipeline > 1 => {
            let work = QueryWork::Message { bytes, to: plan.mesh.first_of(1), blocking: true };
            model.costs.cost(&Query { rank: 0, op: None, work }).time
        }
        _ => Seconds::ZERO,
    }
}

/// Whether the partition problem counts what `plan_memory` does: on each rank the same bytes for even stages that keep everything,
/// that compute everything again, and whose first or last half does. Never with several stages on a rank, or halves of backward,
/// whose peaks depend on more than the stage's blocks.
pub(super) fn counts_all_memory(
    model: &CostModel,
    candidate: &Candidate,
    problem: &Problem,
    meter: &MemoryMeter,
) -> bool {
    let kind = model.pipelines.kind(candidate);
    if !kind.ramps || kind.halves || candidate.virtual_stages > 1 {
        return false;
    }
    let options = recompute_choices(model.question);
    let classes: Vec<usize> =
        problem.runs.iter().flat_map(|run| std::iter::repeat_n(run.class, run.count)).collect();
    let even = candidate.even_stages(model.question.model.layers());
    // The first half of each stage's blocks by one choice, the others by another.
    let agrees = |[first, second]: [usize; 2]| {
        let choice = |block: usize, blocks: usize| if block < blocks / 2 { first } else { second };
        let stage = |stage: &StageBlocks| {
            let blocks = stage.0.len();
            StageBlocks((0..blocks).map(|block| options[choice(block, blocks)]).collect())
        };
        let plan = candidate.plan(model.question, even.iter().map(stage).collect());
        let memory = meter.memory(&meter.measured(plan));
        let mut next = classes.iter();
        problem.stages.iter().zip(&even).zip(&memory).all(|((stage, blocks), rank)| {
            let (mut counted, mut peak) = (stage.memory, stage.peak);
            for (block, class) in next.by_ref().take(blocks.0.len()).enumerate() {
                let class = &problem.classes[stage.device][*class];
                let choice = &class.choices[choice(block, blocks.0.len())];
                counted += class.state + choice.kept * stage.in_flight;
                peak = peak.max(choice.peak);
            }
            ((counted + peak) / rank.total() - 1.0).abs() < AGREEMENT
        })
    };
    let last = options.len() - 1;
    [[0, 0], [last, last], [0, last], [last, 0]].into_iter().all(agrees)
}
