//! Serving on ranks of this machine: the scheduler of `trainwright_sim::serving` drives passes of the executor's ranks.
//!
//! ```text
//! Load ─► Queue ── Policy ─► works of a step ─┬─► RankSteps: a batch through the ranks, its measured time ─► Served
//!                                             └─► FittedSteps: the time that a calibration expects ────────► Served
//! ```
//!
//! The clock of a run is the sum of its steps' times. Where nobody runs it jumps to the next arrival, so that a run waits for
//! nothing.

mod calibration;
mod clock;
mod fitted;
mod ranks;
mod shape;

pub use calibration::{Calibration, calibrate};
pub use clock::{processor_clock, wall_clock};
pub use ranks::RankSteps;

#[cfg(test)]
mod tests;
