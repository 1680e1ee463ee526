//! Why the answer is what it is.

mod alternatives;
mod bottleneck;
mod expected_choices;
mod finalists;
mod infeasible;
mod sensitivity;

pub(crate) use alternatives::alternatives;
pub(crate) use bottleneck::limited_by;
pub(crate) use finalists::{finalists, front, thinned};
pub(crate) use infeasible::{broken, infeasible};
pub use sensitivity::sensitivity;
