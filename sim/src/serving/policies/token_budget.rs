//! One budget of tokens for prompts and single tokens alike.

use super::{Policy, Queue, Work};

/// Running sequences first, in the order of their admission, then waiting ones; each computes what the budget leaves, so that
/// long prompts are cut in chunks. Where the cache is full, the sequence admitted last is preempted and computed again; a step that
/// preempted admits nobody.
///
/// Source: vLLM v1 (blog of 2025-01-27 and 2025-09-05); with a small budget Sarathi-Serve, arXiv 2403.02310.
pub(super) struct TokenBudget;

impl Policy for TokenBudget {
    fn name(&self) -> &'static str {
        "token-budget"
    }

    fn mixes(&self) -> bool {
        true
    }

    fn next(&self, queue: &mut Queue) -> Vec<Work> {
        let mut budget = queue.limits.tokens;
        let preempted = queue.preemptions;
        let mut works = Vec::with_capacity(queue.running.len());
        let mut index = 0;
        while index < queue.running.len() && budget > 0 {
            let sequence = queue.running[index];
            let tokens = queue.sequences[sequence].left().min(budget);
            if !queue.hold_or_preempt(sequence, tokens) {
                break;
            }
            works.push(Work { sequence, tokens });
            budget -= tokens;
            index += 1;
        }
        if queue.preemptions == preempted {
            queue.admit_chunks(budget, &mut works);
        }
        works
    }
}
