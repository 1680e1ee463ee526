//! Capacity planning: what a run takes, and what would change if an input did.
//!
//! ```text
//! Scenario ── settings ──► points ──► planner, once for each ──► answers ─┬─► table (CSV)
//!  (question or plan,      (all combinations,                             ├─► picture
//!   price, PUE, tokens)     in the order they were given)                 └─► pareto
//! ```
//!
//! `questions` asks what people ask most as such sweeps: how many GPUs by a date, the longest sequence that fits, what a
//! faster network would bring. Nothing here touches a terminal, a file or a clock.

pub mod answer;
pub mod date;
pub mod input;
pub mod law;
pub mod pareto;
pub mod picture;
pub mod price;
pub mod questions;
pub mod run;
pub mod scenario;
pub mod sweep;
pub mod table;
