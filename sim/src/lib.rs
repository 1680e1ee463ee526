//! The simulator.

pub mod compute;
