//! The order in which each pipeline rank runs its passes.
//!
//! A schedule is data, lists of actions. `ideal` times the lists, `validate` finds their faults, `text` reads and
//! writes them, `list` makes them for given times and memory. None of them knows what a stage computes.

mod breadth_first;
mod build;
mod chimera;
mod custom;
mod dualpipe;
mod dualpipev;
mod eager;
mod gpipe;
mod hanayo;
pub mod ideal;
mod interleaved;
mod interleaved_groups;
mod interleaved_zb;
pub mod list;
mod one_f_one_b;
mod pipedream_2bw;
pub mod text;
mod v_half;
mod v_min;
mod v_shape;
mod validate;
mod zb_h1;
mod zb_h2;
mod zb_v;

pub use custom::Custom;
pub use validate::{ScheduleFault, validate};

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

/// A step of fewer microbatches, a = 4 p + m mod p, after which a schedule of more than 6 p microbatches repeats: once its
/// pipeline is full, each p more take the same time. `None` if the step is hardly longer, or if the schedule does not exist for
/// it. How many microbatches a stage holds may still grow with m, as it does where all run forward first.
pub fn shorter_step(schedule: &dyn Schedule, shape: PipelineShape) -> Option<PipelineShape> {
    let PipelineShape { ranks: p, microbatches: m, .. } = shape;
    let shorter = PipelineShape { microbatches: 4 * p + m % p, ..shape };
    (m > 6 * p && schedule.check(shorter).is_ok()).then_some(shorter)
}

/// A pipeline schedule: pure data, a list of actions for each pipeline rank.
pub trait Schedule: Send + Sync {
    /// The name in plans and arguments.
    fn name(&self) -> &str;

    /// One line for `show schedules`.
    fn summary(&self) -> &str;

    /// Idle time over work as people write it, with p ranks, m microbatches, v stages on a rank.
    fn bubble(&self) -> &str;

    /// Where it is from.
    fn source(&self) -> &str;

    /// Why the schedule does not exist for this shape, if it does not.
    ///
    /// # Errors
    /// One line with the value and what is allowed.
    fn check(&self, shape: PipelineShape) -> Result<(), String>;

    /// The name of a simpler schedule that is the same for this shape, if there is one.
    fn same_as(&self, _shape: PipelineShape) -> Option<&'static str> {
        None
    }

    /// How many pipelines run through the same ranks, each with a copy of every stage.
    ///
    /// Copy k of stage s is stage k · p · v + s in actions; a microbatch runs through the stages of one copy.
    fn copies(&self) -> usize {
        1
    }

    /// Whether a step ends with an empty pipeline. If not, steps follow each other without a gap: the actions of n
    /// steps are those of n · m microbatches.
    fn flushes(&self) -> bool {
        true
    }

    /// How many versions of the weights a rank holds.
    fn weight_versions(&self) -> usize {
        1
    }

    /// Whether a search that may choose the schedule tries this one.
    fn searched(&self) -> bool {
        false
    }

    /// The pipeline rank that holds `stage`, which counts copies.
    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        stage % shape.ranks
    }

    /// The actions of every rank, in order. `shape` has passed `check`.
    fn lists(&self, shape: PipelineShape) -> ActionLists;

    /// Idle time of a rank over its busy time, for equal stages and free communication; where ranks differ, that of
    /// the one that idles most.
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
pub static SCHEDULES: &[&dyn Schedule] = &[
    &gpipe::GPipe,
    &one_f_one_b::OneForwardOneBackward,
    &interleaved::Interleaved,
    &interleaved_groups::InterleavedGroups,
    &breadth_first::BreadthFirst,
    &eager::Eager,
    &zb_h1::ZbH1,
    &zb_h2::ZbH2,
    &interleaved_zb::InterleavedZb,
    &zb_v::ZbV,
    &v_half::VHalf,
    &v_min::VMin,
    &chimera::Chimera,
    &hanayo::Hanayo,
    &dualpipe::DualPipe,
    &dualpipev::DualPipeV,
    &pipedream_2bw::PipeDream2Bw,
];

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

/// The most microbatches of each stage that are between forward and the end of backward while their rank holds the
/// most of them in all; ties go to the earliest time. Indexed by stage, copies counted.
///
/// `weight` is the memory that one microbatch of a stage keeps, which decides when the peak is.
pub fn peak_in_flight(lists: &ActionLists, weight: impl Fn(usize) -> f64) -> Vec<usize> {
    let stages = lists.ranks.iter().flatten().map(|action| action.stage + 1).max().unwrap_or(0);
    let mut peak = vec![0; stages];
    for actions in &lists.ranks {
        let mut stages_of_rank: Vec<usize> = actions.iter().map(|action| action.stage).collect();
        stages_of_rank.sort_unstable();
        stages_of_rank.dedup();
        let mut held = vec![0usize; stages];
        let (mut now, mut most) = (0.0, 0.0);
        for action in actions {
            match action.kind {
                ActionKind::Forward => {
                    held[action.stage] += 1;
                    now += weight(action.stage);
                }
                ActionKind::Input => {}
                ActionKind::Backward | ActionKind::Weight => {
                    held[action.stage] -= 1;
                    now -= weight(action.stage);
                }
            }
            if now > most {
                most = now;
                stages_of_rank.iter().for_each(|stage| peak[*stage] = held[*stage]);
            }
        }
    }
    peak
}

/// The actions of every pipeline rank, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ActionLists {
    /// By rank.
    pub ranks: Vec<Vec<Action>>,
    /// By rank: positions of the actions that run as one joint pass with the action behind them. Both wait for what
    /// either needs, and both end together. In a program they share the streams: see `Call::joint`.
    pub joint: Vec<Vec<usize>>,
}

impl FromIterator<Vec<Action>> for ActionLists {
    fn from_iter<I: IntoIterator<Item = Vec<Action>>>(ranks: I) -> Self {
        let ranks: Vec<Vec<Action>> = ranks.into_iter().collect();
        ActionLists { joint: vec![Vec::new(); ranks.len()], ranks }
    }
}

/// One entry of a schedule, written `2F0`: stage 2, forward, microbatch 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Action {
    /// Which stage: with virtual stages there are more of them than pipeline ranks.
    pub stage: usize,
    /// Forward, backward, or a half of backward.
    pub kind: ActionKind,
    /// Which microbatch.
    pub microbatch: usize,
}

/// The pass of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ActionKind {
    /// Forward, letter `F`.
    Forward,
    /// The full backward pass, letter `B`: `Input` and `Weight` together.
    Backward,
    /// The half of backward that makes the gradient of the stage's input, letter `I`.
    Input,
    /// The half of backward that makes the gradients of the stage's weights, letter `W`.
    Weight,
}

impl ActionKind {
    /// Every kind.
    pub const ALL: [ActionKind; 4] =
        [ActionKind::Forward, ActionKind::Backward, ActionKind::Input, ActionKind::Weight];

    /// Its letter in actions.
    pub fn letter(self) -> char {
        match self {
            ActionKind::Forward => 'F',
            ActionKind::Backward => 'B',
            ActionKind::Input => 'I',
            ActionKind::Weight => 'W',
        }
    }

    /// Whether it makes the gradient that the stage below waits for.
    pub fn is_input_gradient(self) -> bool {
        matches!(self, ActionKind::Backward | ActionKind::Input)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let letter = self.kind.letter();
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
        let letter = |text: char| ActionKind::ALL.into_iter().find(|kind| kind.letter() == text);
        let (at, kind) =
            text.char_indices().find_map(|(at, text)| Some((at, letter(text)?))).ok_or_else(bad)?;
        // Larger numbers are slips of the pen, and could not be counted beyond.
        let number = |text: &str| text.parse::<u32>().map(|number| number as usize).map_err(|_| bad());
        Ok(Action { stage: number(&text[..at])?, kind, microbatch: number(&text[at + 1..])? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_printed_and_read_back() {
        for text in ["0F0", "12B345", "3I4", "1W12"] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        for text in ["", "F", "0X1", "0F", "F0", "-1F0", "0F18446744073709551615"] {
            assert!(text.parse::<Action>().is_err(), "{text}");
        }
    }

    #[test]
    fn microbatches_in_flight_are_those_of_the_closed_forms() {
        let shape =
            |ranks, virtual_stages, microbatches| PipelineShape { ranks, virtual_stages, microbatches };
        let check = |name: &str, shape: PipelineShape, expected: &[usize]| {
            let peak = peak_in_flight(&schedule(name).unwrap().lists(shape), |_| 1.0);
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
