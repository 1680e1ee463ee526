//! The integer program of the stages of a candidate: see `stage_program`.

use super::activation_memory::room_at;
use super::longest_paths::Passes;
use super::rank_capacity::least_peak;
use super::stage_program::{StageOption, StageOptions, StageProgram};
use crate::candidate::Candidate;
use crate::cost::{CostModel, LayerCost, Parameters, enough_microbatches};
use std::sync::Arc;
use trainwright_spec::plan::Plan;
use trainwright_spec::schedule::ideal::PassTimes;
use trainwright_spec::units::{Bytes, Seconds};

/// The program of the stages of a candidate whose microbatches run through `passes` in their order, where a message takes `message`;
/// `None` where the program does not say it: with offload, or copies of stages.
pub(super) fn whole_blocks(
    model: &CostModel,
    candidate: &Candidate,
    plan: &Plan,
    (passes, message): (Arc<Passes>, Seconds),
) -> Option<StageProgram> {
    let copies = model.pipelines.kind(candidate).copies;
    if copies > 1 || !plan.offload.is_none() {
        return None;
    }
    let shape = candidate.shape(model.question.job.global_batch);
    let few = enough_microbatches(candidate, shape);
    let (schedule, stages) = (candidate.schedule(), shape.stages());
    let runs = &model.question.model.blocks;
    let by_kind = model.by_kind(candidate);
    let in_flight = model.pipelines.in_flight(candidate);
    // The allocator loses a part of all activations and temporaries.
    let lost = 1.0 + plan.stack.lost_part(plan.mesh.tensor);
    let memory_of = |rank: usize| plan.node(rank).gpu.memory.value;
    let peak_of_blocks = least_peak(model, candidate, plan);
    let mut room = Vec::new();
    for (rank, peaks) in in_flight.peaks.iter().enumerate() {
        let ends = by_kind[plan.kind(rank)].ends(candidate, stages);
        let ends = ends.iter().filter(|(stage, _)| schedule.rank_of(*stage, shape) == rank);
        let peak = peak_of_blocks.map(|peak| ends.map(|(_, end)| end.peak).fold(peak, Bytes::max));
        let temporary = peak.unwrap_or(Bytes::ZERO) * lost;
        let of_peak = |peak| (room_at(model, candidate, plan, (rank, peak)) - temporary) / memory_of(rank);
        room.push(peaks.iter().map(of_peak).collect());
    }
    let seconds =
        |PassTimes { forward, input, weight }: PassTimes| [forward, input, weight].map(Seconds::get);
    let stage = |stage: usize| {
        let rank = schedule.rank_of(stage, shape);
        let cost = &by_kind[plan.kind(rank)];
        let held = |choice: &LayerCost, of_stage: &[_]| -> f64 {
            let kept: f64 = of_stage.iter().map(|at| choice.kept_by(at)).sum();
            (Parameters::of(choice).gpu_state(plan) + Bytes::new(kept * lost)) / memory_of(rank)
        };
        let of_stage: Vec<Vec<_>> = in_flight.peaks[rank]
            .iter()
            .map(|peak| peak.iter().filter(|at| at.stage == stage).copied().collect())
            .collect();
        let option = |run: usize, (choice, cost): (usize, &LayerCost)| StageOption {
            run,
            choice,
            times: seconds(cost.pass_times()),
            memory: of_stage.iter().map(|of_stage| held(cost, of_stage)).collect(),
        };
        let runs = cost.blocks.iter().enumerate();
        let options =
            runs.flat_map(|(run, choices)| choices.iter().enumerate().map(move |choice| (run, choice)));
        let ends = cost.ends(candidate, stages);
        let mut of_ends = [0.0; 3];
        for (_, end) in ends.iter().filter(|(at, _)| *at == stage) {
            of_ends.iter_mut().zip(seconds(end.pass_times())).for_each(|(sum, time)| *sum += time);
        }
        StageOptions {
            rank,
            // The first may have the embedding alone, the last the head.
            least_blocks: usize::from((stage > 0 && stage + 1 < stages) || stages == 1),
            ends: of_ends,
            options: undominated(options.map(|(run, choice)| option(run, choice)).collect()),
        }
    };
    Some(StageProgram {
        stages: (0..stages).map(stage).collect(),
        room,
        blocks: runs.iter().map(|run| run.count).collect(),
        message: message.get(),
        more: (shape.microbatches - few) as f64,
        whole: shape.virtual_stages == 1,
        passes,
    })
}

/// Those of a stage's options than which no other one of the same run is as good in everything.
fn undominated(options: Vec<StageOption>) -> Vec<StageOption> {
    let figures = |option: &StageOption| -> Vec<f64> { [&option.times[..], &option.memory].concat() };
    let dominates = |one: &StageOption, other: &StageOption| {
        one.run == other.run && figures(one).iter().zip(figures(other)).all(|(one, other)| *one <= other)
    };
    let mut kept: Vec<StageOption> = Vec::new();
    for option in options {
        if !kept.iter().any(|other| dominates(other, &option)) {
            kept.retain(|other| !dominates(&option, other));
            kept.push(option);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_goes_if_one_of_its_run_is_as_good_in_everything() {
        let option = |run: usize, time: f64, memory: [f64; 2]| StageOption {
            run,
            choice: 0,
            times: [time; 3],
            memory: memory.to_vec(),
        };
        let options = vec![
            option(0, 1.0, [5.0, 5.0]),
            // Slower and smaller; then as fast and smaller at one peak, so that the one before goes.
            option(0, 2.0, [3.0, 3.0]),
            option(0, 2.0, [2.0, 3.0]),
            // Equal to one that is kept, worse than one, and as bad as one of another run.
            option(0, 1.0, [5.0, 5.0]),
            option(0, 3.0, [3.0, 3.0]),
            option(1, 3.0, [3.0, 3.0]),
            // Better at one peak, worse at another.
            option(0, 2.0, [3.0, 2.0]),
        ];
        let kept =
            undominated(options).into_iter().map(|option| (option.run, option.times[0], option.memory));
        let expected =
            [(0, 1.0, [5.0, 5.0]), (0, 2.0, [2.0, 3.0]), (1, 3.0, [3.0, 3.0]), (0, 2.0, [3.0, 2.0])];
        assert_eq!(
            kept.collect::<Vec<_>>(),
            expected.map(|(run, time, memory)| (run, time, memory.to_vec()))
        );
    }
}
