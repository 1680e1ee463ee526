//! Which layers on which pipeline stage, and which recompute for each layer: solved exactly.
//!
//! A [`Problem`] holds what a layer costs under each choice of recompute, what each stage holds besides, and how much
//! memory each rank has left. [`solve`] returns the split with the least step time
//!
//! ```text
//! steady · max_r t_r + ramp · Σ_r t_r        t_r  time of rank r for one microbatch, over all of its stages
//! ```
//!
//! such that on every rank r, over its stages s and their layers l with choice c
//!
//! ```text
//! Σ_s ( fixed_s + Σ_l ( state_l + in_flight_s · kept_lc ) ) + max_l peak_lc ≤ memory_r
//! ```
//!
//! How it is found, and proved:
//! - `mixes`: how many layers of a class take which choice is all that matters inside an interval, so an interval's best
//!   mix is read off an exact Pareto front of (time, kept memory) per count of layers.
//! - `separable`, `slots`, `network`: where the ranks' costs do not depend on each other (one stage per rank, or all layers
//!   alike), a split is a path, and bounds from shortest paths are tightened until they meet; or, on request, the paths are
//!   an integer linear program (`arc_flow`).
//! - `coupled`, `columns`: with several stages per rank and several classes, distant intervals share a rank's memory; that is
//!   an integer linear program, which starts from a split by local search (`coupled_search`, `greedy`) and from bounds that
//!   forget the order of the layers (`relaxed`). If the layers form few runs, `pattern_search` tries instead all patterns of
//!   stages over runs (`patterns`), under each of which ranks are independent again (`rank_costs`, `spread`).
//! - `solver` is the only file that knows a solver; `check` measures every split on the problem as given.
//! - `exact`: a slow independent method, the tests' twin.
//!
//! This module knows neither models nor schedules: whoever builds the problem turns them into seconds and bytes.
//!
//! ```
//! use trainwright_planner::partition::*;
//! use trainwright_spec::units::{Bytes, Seconds};
//!
//! // Seven equal layers of 1 s; the head on the last stage weighs as much as one layer.
//! let free = Choice { time: Seconds::new(1.0), kept: Bytes::ZERO, peak: Bytes::ZERO };
//! let stage = |rank, head| Stage { rank, time: Seconds::new(head), memory: Bytes::ZERO, in_flight: 1.0 };
//! let problem = Problem {
//!     runs: vec![Run { class: 0, count: 7 }],
//!     classes: vec![LayerClass { state: Bytes::ZERO, choices: vec![free] }],
//!     stages: vec![stage(0, 0.0), stage(1, 1.0)],
//!     ranks: vec![RankLimit { memory: Bytes::GIB }; 2],
//!     steady: 9.0,
//!     ramp: 1.0,
//! };
//! let Outcome::Solved(best) = solve(&problem, Route::Quickest, Seconds::new(1.0)).unwrap() else { panic!() };
//! assert_eq!(best.intervals, [0..4, 4..7]);
//! assert_eq!(best.objective, Seconds::new(9.0 * 4.0 + 8.0));
//! ```

mod arc_flow;
mod check;
mod columns;
mod coupled;
mod coupled_search;
pub mod exact;
mod greedy;
mod layers;
mod mixes;
mod network;
mod pattern_search;
mod patterns;
mod placement;
mod rank_costs;
mod relaxed;
mod separable;
mod slots;
mod solver;
mod spread;

use std::ops::Range;
use thiserror::Error;
use trainwright_spec::units::{Bytes, Seconds};

/// Layers, stages and limits: see the module for what they mean together.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The model's layers in order, as runs of identical ones.
    pub runs: Vec<Run>,
    /// The kinds of layers.
    pub classes: Vec<LayerClass>,
    /// The (virtual) stages in order of execution; each holds one or more consecutive layers.
    pub stages: Vec<Stage>,
    /// The pipeline's ranks; each has one stage or more.
    pub ranks: Vec<RankLimit>,
    /// How often the slowest rank's time counts, e.g. microbatches less one.
    pub steady: f64,
    /// How often the sum of all ranks' times counts.
    pub ramp: f64,
}

/// Consecutive identical layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index into [`Problem::classes`].
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
    /// Index into [`Problem::ranks`].
    pub rank: usize,
    /// Embedding, head and whatever else it runs for each microbatch besides its layers.
    pub time: Seconds,
    /// What it holds besides its layers.
    pub memory: Bytes,
    /// How many microbatches' activations it holds when its rank's memory peaks.
    pub in_flight: f64,
}

/// What a rank can hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankLimit {
    /// What is left for layers, activations and [`Stage::memory`].
    pub memory: Bytes,
}

/// What came of a [`Problem`].
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A split, proved best if [`Solution::optimal`].
    Solved(Solution),
    /// Proof that there is none.
    Infeasible(Infeasible),
    /// The time limit ended the search before it found a split or a proof that there is none.
    Undecided {
        /// No split is faster than this.
        bound: Seconds,
    },
}

/// A split and its proof.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The layers of each stage.
    pub intervals: Vec<Range<usize>>,
    /// For each layer, the index into its class's choices. Among equal layers of a stage, those that keep less come first.
    pub choices: Vec<usize>,
    /// For each rank, its time for one microbatch.
    pub rank_times: Vec<Seconds>,
    /// For each rank, what it holds at its peak.
    pub rank_memory: Vec<Bytes>,
    /// steady · max + ramp · sum of `rank_times`.
    pub objective: Seconds,
    /// No split is faster than this.
    pub bound: Seconds,
    /// Whether `objective` equals `bound` (to 1e-9).
    pub optimal: bool,
    /// How it was found.
    pub effort: Effort,
}

/// What a solution took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// What proved the solution.
    pub method: Method,
    /// Columns of the integer programs given to the solver; 0 if none was needed.
    pub columns: usize,
    /// Rows of the same.
    pub rows: usize,
    /// Nodes of the solver's search.
    pub nodes: usize,
}

/// What proved a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// A split met a bound from shortest paths: no solver was called.
    #[default]
    Bounds,
    /// The integer program.
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
    /// However the layers are split and recomputed, a rank lacks memory.
    Memory {
        /// The rank that lacks most in the split whose worst rank lacks least; for ranks with several stages and layers of
        /// several classes, in a split near that one.
        rank: usize,
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
        /// `stages`, `ranks` or `choices of class 3`.
        what: String,
    },
    /// An index past the end of its list.
    #[error("{what} is {index}, but there are only {count}")]
    OutOfRange {
        /// `the rank of stage 3`, `the class of run 1`.
        what: String,
        /// The index.
        index: usize,
        /// The list's length.
        count: usize,
    },
    /// A rank to which no stage belongs.
    #[error("rank {rank} has no stage: leave it out")]
    IdleRank {
        /// The rank.
        rank: usize,
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

/// How to prove a split best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Bounds where ranks do not depend on each other, which never need a solver; else the integer program.
    Quickest,
    /// The integer program, unless no column survives the first bound. Slower, and it says the same.
    IntegerProgram,
}

/// The best split of `problem`, or why there is none; about `time_limit` at most is spent in the solver.
///
/// # Errors
/// [`PartitionError`] if the problem makes no sense.
pub fn solve(problem: &Problem, route: Route, time_limit: Seconds) -> Result<Outcome, PartitionError> {
    check::validate(problem)?;
    let layers = problem.runs.iter().map(|run| run.count).sum();
    let stages = problem.stages.len();
    if layers < stages {
        return Ok(Outcome::Infeasible(Infeasible::TooFewLayers { layers, stages }));
    }
    let layers = layers::Layers::new(problem);
    let one_stage_each = stages == problem.ranks.len();
    if one_stage_each || layers.classes.len() == 1 {
        Ok(separable::solve(problem, &layers, route, time_limit))
    } else {
        Ok(coupled::solve(problem, &layers, route, time_limit))
    }
}

impl Problem {
    /// steady · max + ramp · sum.
    fn objective(&self, slowest: f64, sum: f64) -> f64 {
        self.steady * slowest + self.ramp * sum
    }
}

/// Whether `needs` fits into `limit`, both in bytes, but for rounding: 1e-9 of the limit is some 80 bytes of 80 GB.
fn fits(needs: f64, limit: f64) -> bool {
    needs <= limit + limit.abs() * 1e-9
}
