//! Jobs that arrive over time: a policy is asked at every round which of them run on how many GPUs.
//!
//! ```text
//! trace of arrivals ─┐
//! table of speeds ───┴─► simulate ◄─ policy (policies/NAME.rs) ─► Outcome ─► audit, stats
//! ```
//!
//! Time runs in rounds. At the start of a round the policy sees the jobs that have arrived and not ended, and grants GPUs. A job
//! whose grant changes loses its GPUs, takes others, and first waits for its restart (a checkpoint and a reload, or its first
//! start) while it holds them. Work of a job is a number of steps; GPUs of one kind give it a measured speed. A job that ends
//! within a round leaves its GPUs idle until the next one.

pub mod audit;
mod placement;
mod simulate;
pub mod speeds;
pub mod stats;
pub mod trace;
mod view;

pub use placement::Packing;
pub use simulate::{Done, OnlineError, Outcome, Question, Segment, simulate, simulate_all};
pub use view::{Active, Grant, View};
