//! Pipelines that go down the ranks and back up: rank r holds stages r and 2p − 1 − r.
//!
//! A building block says when one microbatch passes each rank; repeated every six passes (two stages times F, I, W) it
//! gives the order of F and I. W has no one waiting for it and fills the gaps.
//! Source: Qi et al. 2024, arXiv 2405.15362, sections 3 and 4.

use super::build::Build;
use super::ideal::{PassTimes, Times};
use super::{Action, ActionKind, ActionLists, PipelineShape};

/// The rank of `stage`.
pub(super) fn rank_of(stage: usize, shape: PipelineShape) -> usize {
    if stage < shape.ranks { stage } else { 2 * shape.ranks - 1 - stage }
}

/// Refuses shapes that have not two stages on a rank.
pub(super) fn check(name: &str, shape: PipelineShape) -> Result<(), String> {
    match shape.virtual_stages {
        2 => Ok(()),
        v => Err(format!(
            "schedule `{name}` has 2 virtual stages, not {v}: it goes down the ranks and back up"
        )),
    }
}

/// When one microbatch passes the ranks, in passes.
pub(super) struct Block {
    /// How much later the next rank follows: F down, F up, I down, I up.
    pub shifts: [usize; 4],
    /// How long it waits before F up, I down, I up.
    pub waits: [usize; 3],
}

impl Block {
    /// The order of F and I on each rank.
    pub fn order(&self, shape: PipelineShape) -> Vec<Vec<Action>> {
        const REPEAT: usize = 6;
        let last = shape.ranks - 1;
        let [down, up, back_down, back_up] = self.shifts;
        let [before_up, before_back_down, before_back_up] = self.waits;
        let start_up = down * last + 1 + before_up;
        let start_back_down = start_up + up * last + 1 + before_back_down;
        let start_back_up = start_back_down + back_down * last + 1 + before_back_up;
        let of_rank = |rank: usize| {
            let (lower, upper, to_last) = (rank, 2 * shape.ranks - 1 - rank, last - rank);
            let passes = [
                (down * rank, lower, ActionKind::Forward),
                (start_up + up * to_last, upper, ActionKind::Forward),
                (start_back_down + back_down * rank, upper, ActionKind::Input),
                (start_back_up + back_up * to_last, lower, ActionKind::Input),
            ];
            let mut timed: Vec<(usize, Action)> = (0..shape.microbatches)
                .flat_map(|microbatch| {
                    passes.map(|(time, stage, kind)| {
                        (time + REPEAT * microbatch, Action { stage, kind, microbatch })
                    })
                })
                .collect();
            timed.sort_unstable();
            timed.into_iter().map(|(_, action)| action).collect()
        };
        (0..shape.ranks).map(of_rank).collect()
    }
}

/// Runs F and I in the given order as soon as they can, and W whenever the next of them cannot start: because what it
/// needs is not there, or because the rank holds `limit` activations of its stages.
pub(super) fn fill(shape: PipelineShape, order: &[Vec<Action>], limit: usize) -> ActionLists {
    let times = Times::equal(shape, PassTimes::unit());
    let rank_of = (0..shape.stages()).map(|stage| rank_of(stage, shape)).collect();
    let build = Build { limit: vec![limit; shape.ranks], ..Build::unlimited(shape, rank_of, &times) };
    let mut next = vec![0; shape.ranks];
    let lists = build.run(|choice| {
        let find = |wanted: &dyn Fn(Action) -> bool| {
            choice.candidates.iter().position(|candidate| wanted(candidate.action))
        };
        let due = order[choice.rank].get(next[choice.rank]);
        let in_order = due.and_then(|due| find(&|action| action == *due));
        next[choice.rank] += usize::from(in_order.is_some());
        // The oldest W first: its activations have been held longest.
        let weight =
            choice.candidates.iter().enumerate().filter(|(_, c)| c.action.kind == ActionKind::Weight);
        let oldest = weight.min_by_key(|(_, candidate)| (candidate.turn, candidate.action.stage));
        in_order.or(oldest.map(|(index, _)| index))
    });
    lists.expect("a building block passes every rank in the order of its times")
}
