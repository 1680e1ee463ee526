//! The planner.

pub mod partition;
