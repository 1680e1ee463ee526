//! The simulator.

pub mod network;
