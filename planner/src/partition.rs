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
//! idle_s + Σ_l idle_l ≤ idle_limit_s
//! ```
//!
//! How it is found, and proved:
//! - `mixes`: how many layers of a class take which choice is all that matters inside an interval, so an interval's best
//!   mix is read off an exact Pareto front of (time, kept memory) per count of layers; `intervals` asks for it.
//! - `split_network`: a split is a path over (stage, layers so far). Shortest paths bound the objective and drop what no better
//!   split can use.
//! - `arc_flow`: what is left is an integer linear program, which `crate::solver`, the only file that knows one, solves.
//! - `split` puts these together, and checks the program's answer by shortest paths; `verify` measures every split on the
//!   problem as given.
//! - `exact`: a slow independent method, the tests' twin.
//!
//! Stages may be on devices of several kinds, each of which runs the same layers in another time.
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
//!     idle: Bytes::ZERO,
//!     idle_limit: Bytes::GIB,
//!     device: 0,
//!     least_layers: 1,
//! };
//! let problem = Problem {
//!     runs: vec![Run { class: 0, count: 7 }],
//!     classes: vec![vec![LayerClass { state: Bytes::ZERO, idle: Bytes::ZERO, choices: vec![free] }]],
//!     stages: vec![stage(0.0), stage(1.0)],
//!     steady: 9.0,
//!     ramp: 1.0,
//! };
//! let Outcome::Solved(best) = solve(&problem, Seconds::new(1.0)).unwrap() else { panic!() };
//! assert_eq!(best.intervals, [0..4, 4..7]);
//! assert_eq!(best.objective, Seconds::new(9.0 * 4.0 + 8.0));
//! ```

mod arc_flow;
mod counted_layers;
pub mod exact;
mod intervals;
mod mixes;
mod outcome;
mod problem;
mod split;
mod split_network;
mod stage_layout;
mod verify;

use counted_layers::CountedLayers;
pub use outcome::{Effort, Infeasible, Method, Outcome, Solution};
pub use problem::{Choice, LayerClass, PartitionError, Problem, Run, Stage};
use trainwright_spec::units::Seconds;

/// The best split of `problem`, or why there is none. If the solver needs more than about `time_limit`, shortest paths
/// find it instead.
///
/// # Errors
/// [`PartitionError`] if the problem makes no sense.
pub fn solve(problem: &Problem, time_limit: Seconds) -> Result<Outcome, PartitionError> {
    verify::validate(problem)?;
    let layers = problem.runs.iter().map(|run| run.count).sum();
    let needed: usize = problem.stages.iter().map(|stage| stage.least_layers).sum();
    if layers < needed {
        return Ok(Outcome::Infeasible(Infeasible::TooFewLayers { layers, needed }));
    }
    Ok(split::solve(problem, &CountedLayers::new(problem), time_limit))
}
