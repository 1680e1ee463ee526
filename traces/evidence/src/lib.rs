//! Measured runs and their forecasts: published collectives (`published`), tables of training runs (`runs`), forecasts of
//! them (`forecasts`), the errors (`summary`), those of other simulators (`peers`), the ranges (`reliability`), and calibrations that make them smaller (`fit`).
//!
//! ```text
//! CSV ─► runs: Run ─► Plan ─► forecasts ─► summary, by source, GPU, stack …
//!                        └──► fit ─► Calibration, judged by sources left out
//! ```

pub mod columns;
pub mod fit;
pub mod forecasts;
pub mod kernels;
pub mod loops;
pub mod peers;
pub mod published;
pub mod reliability;
pub mod runs;
pub mod serving;
pub mod statistics;
pub mod summary;
