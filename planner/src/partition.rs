//! Which layers on which pipeline stage, and which recompute for each layer: solved exactly.
//!
//! A [`Problem`] holds what a layer costs under each choice of recompute, and what each stage holds besides and can hold.
//! [`solve`] returns the split with the least step time
//!
//! ```text
//! steady · max_s t_s + ramp · Σ_s t_s        t_s  time of stage s for one microbatch
//! ```
//!
//! such that on every stage s, over its layers l with choice c
//!
//! ```text
//! fixed_s + Σ_l ( state_l + in_flight_s · kept_lc ) + max( peak_s, max_l peak_lc ) ≤ limit_s
//! ```
//!
//! How it is found, and proved:
//! - `mixes`: how many layers of a class take which choice is all that matters inside an interval, so an interval's best
//!   mix is read off an exact Pareto front of (time, kept memory) per count of layers; `intervals` asks for it.
//! - `network`: a split is a path over (stage, layers so far). Shortest paths bound the objective and drop what no better
//!   split can use.
//! - `arc_flow`: what is left is an integer linear program, which `solver`, the only file that knows one, solves.
//! - `split` puts these together, and checks the program's answer by shortest paths; `check` measures every split on the
//!   problem as given.
//! - `exact`: a slow independent method, the tests' twin.
//!
//! Stages may be on devices of several kinds, each of which runs the same layers in its own time.
//!
//! This module knows neither models nor schedules: whoever builds the problem turns them into seconds and bytes.
//!
//! ```
//! use trainwright_planner::partition::*;
//! use trainwright_spec::units::{Bytes, Seconds};
//!
//! // Seven equal layers of 1 s; the head on the last stage weighs as much as one layer.
//! let free = Choice { time: Seconds::new(1.0), kept: Bytes::ZERO, peak: Bytes::ZERO };
//! let stage = |head| Stage {
//!     time: Seconds::new(head),
//!     memory: Bytes::ZERO,
//!     peak: Bytes::ZERO,
//!     in_flight: 1.0,
//!     limit: Bytes::GIB,
//!     device: 0,
//! };
//! let problem = Problem {
//!     runs: vec![Run { class: 0, count: 7 }],
//!     classes: vec![vec![LayerClass { state: Bytes::ZERO, choices: vec![free] }]],
//!     stages: vec![stage(0.0), stage(1.0)],
//!     steady: 9.0,
//!     ramp: 1.0,
//! };
//! let Outcome::Solved(best) = solve(&problem, Seconds::new(1.0)).unwrap() else { panic!() };
//! assert_eq!(best.intervals, [0..4, 4..7]);
//! assert_eq!(best.objective, Seconds::new(9.0 * 4.0 + 8.0));
//! ```

mod arc_flow;
mod check;
pub mod exact;
mod intervals;
mod layers;
mod mixes;
mod network;
mod placement;
mod solver;
mod split;

use std::ops::Range;
use thiserror::Error;
use trainwright_spec::units::{Bytes, Seconds};

/// Layers, stages and limits: see the module for what they mean together.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The model's layers in order, as runs of identical ones.
    pub runs: Vec<Run>,
    /// The kinds of layers on each kind of device: as many in the same order for each, and of each as many choices.
    pub classes: Vec<Vec<LayerClass>>,
    /// The stages in order of execution; each holds one or more consecutive layers.
    pub stages: Vec<Stage>,
    /// How often the slowest stage's time counts, e.g. microbatches less one.
    pub steady: f64,
    /// How often the sum of all stages' times counts.
    pub ramp: f64,
}

/// Consecutive identical layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index into the classes of each device.
    pub class: usize,
    /// How many layers.
    pub count: usize,
}

/// A kind of layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerClass {
    /// Weights, gradients and optimizer state of one layer.
    pub state: Bytes,
    /// The ways to run it; one or more.
    pub choices: Vec<Choice>,
}

/// One way to run a layer, e.g. with full recompute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Forward and backward, recompute included, of one microbatch.
    pub time: Seconds,
    /// Activations kept for the backward, of one microbatch.
    pub kept: Bytes,
    /// What its backward needs besides, while it runs.
    pub peak: Bytes,
}

/// One pipeline stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// Embedding, head and whatever else it runs for each microbatch besides its layers.
    pub time: Seconds,
    /// What it holds besides its layers.
    pub memory: Bytes,
    /// What its part besides the layers needs while it runs.
    pub peak: Bytes,
    /// How many microbatches' activations it holds at its peak.
    pub in_flight: f64,
    /// What it can hold.
    pub limit: Bytes,
    /// The kind of its device: index into [`Problem::classes`].
    pub device: usize,
}

/// What came of a [`Problem`].
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The best split.
    Solved(Solution),
    /// Proof that there is none.
    Infeasible(Infeasible),
    /// The split that was found did not stand up to the check on the problem as given.
    Undecided,
}

/// The best split: no other is faster, but for rounding (1e-9 of its time).
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The layers of each stage.
    pub intervals: Vec<Range<usize>>,
    /// For each layer, the index into its class's choices. Among equal layers of a stage, those that keep less come first.
    pub choices: Vec<usize>,
    /// For each stage, its time for one microbatch.
    pub times: Vec<Seconds>,
    /// For each stage, what it holds at its peak.
    pub memory: Vec<Bytes>,
    /// steady · max + ramp · sum of `times`.
    pub objective: Seconds,
    /// How it was found.
    pub effort: Effort,
}

/// What a solution took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// What found it.
    pub method: Method,
    /// Columns of the integer program given to the solver; 0 if none was needed.
    pub columns: usize,
    /// Rows of the same.
    pub rows: usize,
    /// Nodes of the solver's search.
    pub nodes: usize,
}

/// What found a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Shortest paths: their bounds left one split, or more arcs than the solver is given, or the solver failed.
    #[default]
    ShortestPaths,
    /// The integer program, over the arcs that the bounds left.
    IntegerProgram,
}

/// Why no split exists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Infeasible {
    /// Each stage needs a layer.
    TooFewLayers {
        /// How many there are.
        layers: usize,
        /// How many there must be.
        stages: usize,
    },
    /// However the layers are split and recomputed, a stage lacks memory.
    Memory {
        /// The stage that lacks most in the split whose worst stage lacks least.
        stage: usize,
        /// What it would hold.
        needs: Bytes,
        /// What it can hold.
        limit: Bytes,
    },
}

/// Why a problem makes no sense.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// An empty list.
    #[error("the problem has no {what}: give one or more")]
    Missing {
        /// `stages`, `runs` or `choices of class 3`.
        what: String,
    },
    /// A run of layers of no class.
    #[error("the class of run {run} is {class}, but there are only {count}")]
    UnknownClass {
        /// The run.
        run: usize,
        /// Its class.
        class: usize,
        /// How many classes there are.
        count: usize,
    },
    /// A stage on no device.
    #[error("the device of stage {stage} is {device}, but there are only {count}")]
    UnknownDevice {
        /// The stage.
        stage: usize,
        /// Its device.
        device: usize,
        /// How many devices have classes.
        count: usize,
    },
    /// Devices that run other layers than the first.
    #[error("device {device} has other classes or choices than device 0: give each as many")]
    UnlikeDevices {
        /// The device.
        device: usize,
    },
    /// A number that is negative, infinite or not a number.
    #[error("{what} is {value}: it must be finite and not negative")]
    BadNumber {
        /// Which number.
        what: String,
        /// Its value.
        value: f64,
    },
}

/// The best split of `problem`, or why there is none. If the solver needs more than about `time_limit`, shortest paths
/// find it instead.
///
/// # Errors
/// [`PartitionError`] if the problem makes no sense.
pub fn solve(problem: &Problem, time_limit: Seconds) -> Result<Outcome, PartitionError> {
    check::validate(problem)?;
    let layers = problem.runs.iter().map(|run| run.count).sum();
    let stages = problem.stages.len();
    if layers < stages {
        return Ok(Outcome::Infeasible(Infeasible::TooFewLayers { layers, stages }));
    }
    Ok(split::solve(problem, &layers::Layers::new(problem), time_limit))
}

impl Problem {
    /// steady · max + ramp · sum of the stages' times for one microbatch.
    pub fn objective(&self, times: &[Seconds]) -> Seconds {
        let slowest = times.iter().copied().fold(Seconds::ZERO, Seconds::max);
        slowest * self.steady + times.iter().copied().sum::<Seconds>() * self.ramp
    }

    /// The same in seconds.
    fn cost(&self, slowest: f64, sum: f64) -> f64 {
        self.steady * slowest + self.ramp * sum
    }
}

/// The part of a limit, or of an objective, that rounding may take: 80 bytes of 80 GB.
const TOLERANCE: f64 = 1e-9;

/// Whether `needs` fits into `limit`, both in bytes, but for rounding.
fn fits(needs: f64, limit: f64) -> bool {
    needs <= limit + limit.abs() * TOLERANCE
}
