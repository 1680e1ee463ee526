//! Chimera: two pipelines in opposite directions.

use super::build::{Backward, Build};
use super::ideal::{PassTimes, Times};
use super::{ActionKind, ActionLists, PipelineShape, Schedule};
use crate::units::Seconds;

/// Half of the microbatches go down the ranks, half up, each direction through a separate copy of the stages: where one
/// direction idles at its ends the other works.
pub struct Chimera;

impl Schedule for Chimera {
    fn name(&self) -> &str {
        "chimera"
    }

    fn summary(&self) -> &str {
        "two 1F1B pipelines in opposite directions; weights twice, p/2 + 1 to p activations"
    }

    fn bubble(&self) -> &str {
        "(p - 2) / (2 m) for F = B and p dividing m"
    }

    fn source(&self) -> &str {
        "Li & Hoefler 2021, arXiv 2107.06925"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        both_directions(self.name(), shape)
    }

    fn copies(&self) -> usize {
        2
    }

    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        opposite(stage, shape)
    }

    /// Each direction is 1F1B with p/2 microbatches in flight, made for F = B as in the paper: backward first, then the
    /// microbatch that entered first, then the later stage.
    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let (one, half) = (Seconds::new(1.0), Seconds::new(0.5));
        let times = Times::equal(shape, PassTimes { forward: one, input: half, weight: half });
        let rank_of = (0..2 * shape.ranks).map(|stage| opposite(stage, shape)).collect();
        let middle = shape.microbatches / 2;
        let build = Build {
            microbatches: vec![(0..middle).collect(), (middle..shape.microbatches).collect()],
            backward: Backward::Whole,
            admitted: shape.ranks / 2,
            ..Build::unlimited(shape, rank_of, &times)
        };
        let lists = build.run(|choice| {
            let order = |(_, candidate): &(usize, &super::build::Candidate)| {
                let stage = candidate.action.stage;
                (
                    candidate.action.kind == ActionKind::Forward,
                    candidate.turn,
                    shape.ranks - stage % shape.ranks,
                    stage,
                )
            };
            choice.candidates.iter().enumerate().min_by_key(order).map(|(index, _)| index)
        });
        lists.expect("admitted microbatches always find a free rank")
    }

    /// Of the ideal run, F = I = W; for F = B it is (p − 2) / (2 m) where p divides m.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        super::ideal::bubble_over_work(self, shape)
    }
}

/// The rank of a stage where the second copy runs from the last rank to the first.
pub(super) fn opposite(stage: usize, shape: PipelineShape) -> usize {
    if stage < shape.ranks { stage } else { 2 * shape.ranks - 1 - stage }
}

/// Refuses shapes that cannot be divided over two directions.
pub(super) fn both_directions(name: &str, shape: PipelineShape) -> Result<(), String> {
    let PipelineShape { ranks, microbatches, .. } = shape;
    super::one_stage_per_rank(name, shape)?;
    for (what, count) in [("pipeline ranks", ranks), ("microbatches", microbatches)] {
        if !count.is_multiple_of(2) {
            return Err(format!("schedule `{name}` needs an even number of {what}, not {count}"));
        }
    }
    Ok(())
}
