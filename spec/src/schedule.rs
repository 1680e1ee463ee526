//! The order in which each pipeline rank runs its passes.

mod gpipe;
mod interleaved;
mod one_f_one_b;

use crate::catalog::nearest;
use crate::error::SpecError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The sizes a schedule is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipelineShape {
    /// Pipeline ranks, p.
    pub ranks: usize,
    /// Stages on each rank, v.
    pub virtual_stages: usize,
    /// Microbatches in a step, m.
    pub microbatches: usize,
}

impl PipelineShape {
    /// Stages in all, p · v.
    pub fn stages(&self) -> usize {
        self.ranks * self.virtual_stages
    }
}

/// A pipeline schedule: pure data, a list of actions for each pipeline rank.
pub trait Schedule: Sync {
    /// The name in plans and arguments.
    fn name(&self) -> &'static str;

    /// One line for `show schedules`.
    fn summary(&self) -> &'static str;

    /// Where it is from.
    fn source(&self) -> &'static str;

    /// Why the schedule does not exist for this shape, if it does not.
    ///
    /// # Errors
    /// One line with the value and what is allowed.
    fn check(&self, shape: PipelineShape) -> Result<(), String>;

    /// The pipeline rank that holds `stage`.
    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        stage % shape.ranks
    }

    /// What `rank` does, in order. `shape` has passed `check`.
    fn actions(&self, rank: usize, shape: PipelineShape) -> Vec<Action>;

    /// Idle time of a rank over its busy time, for equal stages and free communication.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64;

    /// The objective of a layer partition: with t_r the time of one microbatch on rank r, a step takes about
    /// `steady` · max t_r + `ramp` · Σ t_r.
    fn partition_weights(&self, shape: PipelineShape) -> PartitionWeights {
        let ramp = 1.0 / shape.virtual_stages as f64;
        PartitionWeights { steady: shape.microbatches as f64 - ramp, ramp }
    }
}

/// How a pipeline's time follows from its ranks' times: see `Schedule::partition_weights`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartitionWeights {
    /// Weight of the slowest rank.
    pub steady: f64,
    /// Weight of the sum over ranks.
    pub ramp: f64,
}

/// Every schedule. A new one is a file in `schedule/` and a line here.
pub static SCHEDULES: &[&dyn Schedule] =
    &[&gpipe::GPipe, &one_f_one_b::OneForwardOneBackward, &interleaved::Interleaved];

/// The schedule of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn schedule(name: &str) -> Result<&'static dyn Schedule, SpecError> {
    SCHEDULES.iter().copied().find(|schedule| schedule.name() == name).ok_or_else(|| SpecError::UnknownName {
        kind: "schedule",
        name: name.into(),
        nearest: nearest(name, SCHEDULES.iter().map(|schedule| schedule.name())),
    })
}

/// For schedules that do not divide a rank's layers further.
fn one_stage_per_rank(name: &str, shape: PipelineShape) -> Result<(), String> {
    match shape.virtual_stages {
        1 => Ok(()),
        v => Err(format!("schedule `{name}` has 1 virtual stage, not {v}: use `interleaved`")),
    }
}

/// The most microbatches of each stage that are between forward and backward while their rank holds the most of
/// them in all; ties go to the earliest moment. Indexed by stage.
///
/// `weight` is the memory that one microbatch of a stage keeps, which decides which moment is the peak.
pub fn peak_in_flight(
    schedule: &dyn Schedule,
    shape: PipelineShape,
    weight: impl Fn(usize) -> f64,
) -> Vec<usize> {
    let mut peak = vec![0; shape.stages()];
    for rank in 0..shape.ranks {
        let own: Vec<usize> =
            (0..shape.stages()).filter(|stage| schedule.rank_of(*stage, shape) == rank).collect();
        let mut held = vec![0usize; shape.stages()];
        let (mut now, mut most) = (0.0, 0.0);
        for action in schedule.actions(rank, shape) {
            match action.kind {
                ActionKind::Forward => {
                    held[action.stage] += 1;
                    now += weight(action.stage);
                }
                ActionKind::Backward => {
                    held[action.stage] -= 1;
                    now -= weight(action.stage);
                }
            }
            if now > most {
                most = now;
                own.iter().for_each(|stage| peak[*stage] = held[*stage]);
            }
        }
    }
    peak
}

/// One entry of a schedule, written `2F0`: stage 2, forward, microbatch 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Action {
    /// Which stage: with virtual stages there are more of them than pipeline ranks.
    pub stage: usize,
    /// Forward or backward.
    pub kind: ActionKind,
    /// Which microbatch.
    pub microbatch: usize,
}

/// What an action does to its microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ActionKind {
    /// Forward, letter `F`.
    Forward,
    /// The whole backward pass, letter `B`.
    Backward,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let letter = match self.kind {
            ActionKind::Forward => 'F',
            ActionKind::Backward => 'B',
        };
        f.pad(&format!("{}{letter}{}", self.stage, self.microbatch))
    }
}

impl FromStr for Action {
    type Err = String;

    /// Reads `2F0`.
    ///
    /// # Errors
    /// Says what an action looks like when `text` is not one.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not an action such as 2F0 (stage 2, forward, microbatch 0)");
        let at = text.find(['F', 'B']).ok_or_else(bad)?;
        let kind = if &text[at..=at] == "F" { ActionKind::Forward } else { ActionKind::Backward };
        let stage = text[..at].parse().map_err(|_| bad())?;
        let microbatch = text[at + 1..].parse().map_err(|_| bad())?;
        Ok(Action { stage, kind, microbatch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = PipelineShape> {
        let sizes = [1, 2, 3, 4, 7, 8];
        sizes.into_iter().flat_map(move |ranks| {
            [1, 2, 3].into_iter().flat_map(move |virtual_stages| {
                [1, 2, 4, 8, 12, 24].into_iter().map(move |microbatches| PipelineShape {
                    ranks,
                    virtual_stages,
                    microbatches,
                })
            })
        })
    }

    #[test]
    fn every_schedule_runs_each_pass_of_each_microbatch_once_on_its_rank() {
        for schedule in SCHEDULES {
            let mut tried = 0;
            for shape in shapes().filter(|shape| schedule.check(*shape).is_ok()) {
                tried += 1;
                let mut seen = std::collections::BTreeSet::new();
                for rank in 0..shape.ranks {
                    for action in schedule.actions(rank, shape) {
                        assert_eq!(schedule.rank_of(action.stage, shape), rank);
                        if action.kind == ActionKind::Backward {
                            let forward = Action { kind: ActionKind::Forward, ..action };
                            assert!(seen.contains(&forward), "{action} before its forward");
                        }
                        assert!(seen.insert(action), "{} {shape:?}: {action} twice", schedule.name());
                    }
                }
                assert_eq!(seen.len(), 2 * shape.stages() * shape.microbatches);
            }
            assert!(tried >= 20, "{} accepts only {tried} shapes", schedule.name());
        }
    }

    #[test]
    fn actions_are_printed_and_read_back() {
        for text in ["0F0", "12B345"] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        for text in ["", "F", "0X1", "0F", "F0", "-1F0"] {
            assert!(text.parse::<Action>().is_err(), "{text}");
        }
    }

    #[test]
    fn microbatches_in_flight_are_those_of_the_closed_forms() {
        let shape =
            |ranks, virtual_stages, microbatches| PipelineShape { ranks, virtual_stages, microbatches };
        let check = |name: &str, shape: PipelineShape, expected: &[usize]| {
            let peak = peak_in_flight(schedule(name).unwrap(), shape, |_| 1.0);
            let per_rank: Vec<usize> =
                (0..shape.ranks).map(|rank| peak.iter().skip(rank).step_by(shape.ranks).sum()).collect();
            assert_eq!(per_rank, expected, "{name} {shape:?}");
        };
        check("gpipe", shape(4, 1, 8), &[8, 8, 8, 8]);
        check("1f1b", shape(4, 1, 8), &[4, 3, 2, 1]);
        check("1f1b", shape(4, 1, 2), &[2, 2, 2, 1]);
        // min(mv, 2(p - r - 1) + (v - 1)p + 1) chunks.
        check("interleaved", shape(4, 2, 8), &[11, 9, 7, 5]);
        check("interleaved", shape(4, 4, 8), &[19, 17, 15, 13]);
    }
}
