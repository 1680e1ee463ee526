//! The search itself: branch and bound over layouts, candidates and their stages.
//!
//! ```text
//! promise ─► layout ── bound ──► its candidates ── bound ──► tight bound ──► partition, simulation ──► neighbourhood, simulation
//! ```
//!
//! `promise` says at which layouts to look first, `seeds` solves a few of the likeliest, so that there is a plan from the start;
//! `search_space` holds what is known of all layouts, `candidate_trial` solves and simulates one candidate, `branch_and_bound` chooses
//! which, `neighbourhood` improves the stages of the fastest, `search_summary` counts what became of all.

mod branch_and_bound;
mod candidate_trial;
mod neighbourhood;
mod promise;
mod search_space;
mod search_summary;
mod seeds;
mod space_size;

pub(crate) use branch_and_bound::{Explored, Goal, Looks, Seen};
pub(crate) use candidate_trial::{Trial, simulate, unless_stopped};
pub(crate) use search_space::SearchSpace;
pub(crate) use search_summary::search_summary;
