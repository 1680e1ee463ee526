//! From a candidate to its best stages.
//!
//! ```text
//! candidate ──► partition_problem ──► partition::solve ──► best_stages ──► plan that fits, or the rank that lacks memory
//!                                                                 └──► repair, where even shares of memory refuse too much
//! ```

mod best_stages;
mod neighbours;
mod partition_problem;
mod rank_memory;
mod repair;
mod rounded;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use best_stages::certain_shortage;
pub(crate) use best_stages::{MemoryLimits, Staged, stage};
pub(crate) use neighbours::{every_split, moved, neighbours, relieved, second_neighbours};
pub(crate) use rank_memory::RankMemoryUse;
pub(crate) use rounded::{filled_from_behind, recomputed_to_fit, rounded};
