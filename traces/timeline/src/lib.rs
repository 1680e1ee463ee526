//! Timelines: what a training step looks like in time, simulated or measured, and what reads one.
//!
//! ```text
//! Timeline ─┬─► report      where the time and the memory went, as numbers
//!           ├─► comparison  a measured step compared with its forecast
//!           ├─► draw        the pipeline as text
//!           └─► chrome      a trace file for ui.perfetto.dev
//! ```
//!
//! `workload` is what a replay starts from: op lists of ranks with the times that a trace gives.
//!
//! Nothing here knows whether a timeline was simulated or measured, and nothing here touches a terminal or a file.

pub mod actions;
pub mod chrome;
pub mod comparison;
pub mod draw;
pub mod kinds;
pub mod memory;
pub mod report;
pub mod sweep;
pub mod timeline;
pub mod workload;
