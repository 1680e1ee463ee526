//! A fleet on this machine: plans for some of its cores, their forecasts, and the processes of the jobs.
//!
//! ```text
//! jobs.toml ─► Prepared: plans for 1, 2, 4 … cores, each measured here ─► Instance ─► solve ─► Schedule
//!                                                                                              │
//! log.csv ◄── trainwright_fleet::execute::carry_out ◄── Processes: `run` for each job ◄────────┘
//! ```
//!
//! The folder of a fleet has all that is needed to go on: whoever finds a log there carries on with the plans and forecasts beside
//! it.

mod log;
mod prepared;
mod processes;

pub use log::LOG;
pub use prepared::{Prepared, jobs, prepare};
pub use processes::{CHECKPOINTS, Processes, Task, claim, written};
