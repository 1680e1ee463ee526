//! Scheduling policies: which sequences compute which tokens in the next step. One file each, and a line in the table.

mod in_flight;
mod prefill_first;
mod static_batch;
mod token_budget;

use super::queue::{Queue, Work};

/// How an engine makes the batch of a step.
pub trait Policy: Sync {
    /// Its name in engines' files.
    fn name(&self) -> &'static str;

    /// Whether a step may have prompts beside single tokens, so that its budget of tokens decides how long these wait.
    fn mixes(&self) -> bool;

    /// Whether a step has no more tokens than its limit, so that long prompts are cut in chunks.
    fn keeps_budget(&self) -> bool {
        true
    }

    /// The work of the next step; none if nothing can run. Sequences that work have blocks for it.
    fn next(&self, queue: &mut Queue) -> Vec<Work>;
}

/// Every policy.
pub const POLICIES: [&dyn Policy; 4] = [
    &in_flight::InFlight,
    &prefill_first::PrefillFirst,
    &static_batch::StaticBatch,
    &token_budget::TokenBudget,
];

/// The policy of that name; `None` if there is none.
pub fn policy(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.into_iter().find(|policy| policy.name() == name)
}
