//! Whether the activations of a candidate's blocks fit at all.

use super::pipeline_work::ROUNDING;
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, Parameters, Peak};
use trainwright_lower::memory::fixed_overhead;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Bytes;

/// Whether the blocks of the longest run do not fit on all ranks together, however they are recomputed.
///
/// Σ_r M_r / min_c (s + x a_c + y b_c) < c L at one of the ranks' peaks
///
/// x and y microbatches of a stage before backward and between its halves, those of a rank's stage for which x a + y b is
/// least; a_c and b_c what a block keeps of one under recompute choice c, s its state, M_r what is left of the memory;
/// L blocks in c copies.
pub(super) fn exceeds_memory(model: &CostModel, candidate: &Candidate, plan: &Plan) -> bool {
    if !plan.offload.is_none() {
        return false;
    }
    let (longest, blocks) = model.longest_run();
    let state = |layer: &LayerCost| Parameters::of(layer).gpu_state(plan).get();
    let lost = 1.0 + plan.stack.lost_part(plan.mesh.tensor);
    let by_kind = model.by_kind(candidate);
    let most_blocks = |rank: usize, peak: &Peak| {
        let cost = &by_kind[plan.kind(rank)];
        let room = room_at(model, candidate, plan, (rank, peak)).get();
        let memory = |choice: &LayerCost| {
            let kept = peak.iter().map(|in_flight| choice.kept_by(in_flight)).fold(f64::INFINITY, f64::min);
            state(choice) + kept * lost
        };
        let block = cost.blocks[longest].iter().map(memory).fold(f64::INFINITY, f64::min);
        room.max(0.0) / block.max(1.0)
    };
    let blocks = (blocks * model.pipelines.kind(candidate).copies) as f64 * (1.0 - ROUNDING);
    let in_flight = model.pipelines.in_flight(candidate);
    let peaks = in_flight.peaks.first().map_or(0, Vec::len);
    let ranks = || in_flight.peaks.iter().enumerate();
    (0..peaks).any(|at| ranks().map(|(rank, peaks)| most_blocks(rank, &peaks[at])).sum::<f64>() < blocks)
}

/// What a rank has left for blocks at one of its peaks: what may be used of its memory, without what is fixed and what embedding and
/// head on it hold then.
pub(super) fn room_at(
    model: &CostModel,
    candidate: &Candidate,
    plan: &Plan,
    (rank, peak): (usize, &Peak),
) -> Bytes {
    let cost = &model.by_kind(candidate)[plan.kind(rank)];
    let stages = candidate.shape(model.question.job.global_batch).stages();
    let lost = 1.0 + plan.stack.lost_part(plan.mesh.tensor);
    let mut room = model.outlook(candidate).room(plan.node(rank).gpu.memory.value) - fixed_overhead(plan);
    for in_flight in peak {
        let ends = cost.ends(candidate, stages).into_iter();
        for (_, end) in ends.filter(|(stage, _)| in_flight.stage % stages == *stage) {
            room -= Parameters::of(end).gpu_state(plan) + Bytes::new(end.kept_by(in_flight) * lost);
        }
    }
    room
}
