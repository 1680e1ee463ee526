//! A fleet: several jobs on one cluster.
pub mod bound;
pub mod check;
mod gaps;
pub mod heuristics;
pub mod improve;
pub mod instance;
pub mod list;
pub mod objective;
pub mod order_search;
pub mod program;
pub mod schedule;
mod solve;

pub use solve::{Answer, Effort, Rival, Tried, solve};
