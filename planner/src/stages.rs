//! From a candidate to its best stages.
//!
//! ```text
//! candidate ──► partition_problem ──► partition::solve ──► staging ──► plan that fits, or the rank that lacks memory
//!                                                             └──► repair, where even shares of memory refuse too much
//! ```

mod partition_problem;
mod rank_memory;
mod repair;
mod staging;
#[cfg(test)]
mod tests;

pub(crate) use rank_memory::RankMemoryUse;
pub(crate) use staging::{Staged, stage};
