//! The planner: which plan is best, and why.
//!
//! ```text
//! candidates ─► bounds ─► integer program per survivor ─► simulation ─► verdict
//! (mesh, microbatch,      (layers to stages, recompute     (step time)
//!  schedule, sharding)     under each rank's memory)
//! ```
//!
//! Candidates are solved in the order of their lower bounds, until no bound is below the times that are kept.

mod bound;
mod candidate;
mod explain;
mod infeasible;
mod layers;
mod orders;
pub mod partition;
mod search;
mod sensitivity;
mod space;
mod stages;
mod verdict;

pub use search::{Bounds, KEPT, Scope, plan, plan_within};
pub use sensitivity::{Finalist, FrontPoint, Sensitivity, sensitivity};
pub use space::{PinChoice, pin_choices};
pub use verdict::{
    Alternative, Breadth, BrokenLimit, Found, Infeasible, Pins, PlannerError, Progress, Question, Ranked,
    Search, Verdict,
};
