//! What came of a partition problem.

use std::ops::Range;
use trainwright_spec::units::{Bytes, Seconds};

/// What came of a [`Problem`](super::Problem).
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
    /// Rows of the integer program; 0 if none was needed.
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
    /// The stages need more.
    TooFewLayers {
        /// How many there are.
        layers: usize,
        /// How many there must be.
        needed: usize,
    },
    /// However the layers are split and recomputed, a stage lacks memory.
    Memory {
        /// The stage that lacks most in the split whose worst stage lacks least.
        stage: usize,
        /// What it would hold; where what its layers leave between steps exceeds that limit by more, as much beyond this one.
        needs: Bytes,
        /// What it can hold.
        limit: Bytes,
    },
}
