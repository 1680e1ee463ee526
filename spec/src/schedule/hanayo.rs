//! Hanayo: a pipeline that goes back and forth in waves.

use super::build::{Backward, Build};
use super::ideal::{PassTimes, Times};
use super::{ActionKind, ActionLists, PipelineShape, Schedule};

/// Down the ranks and back up w times: v = 2w stages on a rank, neighbours in turn at both ends. The bubble shrinks with
/// w as interleaving's does with v, for fewer messages, since a wave turns on its rank.
pub struct Hanayo;

impl Schedule for Hanayo {
    fn name(&self) -> &str {
        "hanayo"
    }

    fn summary(&self) -> &str {
        "v/2 waves down the ranks and back up; activations of at most p microbatches"
    }

    fn bubble(&self) -> &str {
        "about (2p - 2) / (3 p v/2 - p + 1) for m = p"
    }

    fn source(&self) -> &str {
        "Liu et al. 2023, arXiv 2308.15762"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        match shape.virtual_stages {
            v if v >= 2 && v.is_multiple_of(2) => Ok(()),
            v => Err(format!(
                "schedule `hanayo` needs an even number of virtual stages, two for each wave, not {v}"
            )),
        }
    }

    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        let (leg, at) = (stage / shape.ranks, stage % shape.ranks);
        if leg.is_multiple_of(2) { at } else { shape.ranks - 1 - at }
    }

    /// Made for B = 2 F: backward first, then the microbatch that entered first, then the later stage, with at most
    /// the activations of p microbatches on a rank. If ranks full of early stages would wait for each other, no more
    /// than p microbatches enter at a time, which cannot fill a rank.
    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let times = Times::equal(shape, PassTimes::unit());
        let rank_of = (0..shape.stages()).map(|stage| self.rank_of(stage, shape)).collect();
        let mut build = Build {
            backward: Backward::Whole,
            limit: vec![shape.stages(); shape.ranks],
            ..Build::unlimited(shape, rank_of, &times)
        };
        let run = |build: &Build| {
            build.run(|choice| {
                let order = |(_, candidate): &(usize, &super::build::Candidate)| {
                    let forward = candidate.action.kind == ActionKind::Forward;
                    (forward, candidate.turn, shape.stages() - candidate.action.stage)
                };
                choice.candidates.iter().enumerate().min_by_key(order).map(|(index, _)| index)
            })
        };
        let lists = run(&build);
        build.admitted = shape.ranks;
        lists.or_else(|| run(&build)).expect("p microbatches fit on every rank")
    }

    /// Of the ideal run: the paper's closed form counts half-filled rounds and is an approximation.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        super::ideal::bubble_over_work(self, shape)
    }
}
