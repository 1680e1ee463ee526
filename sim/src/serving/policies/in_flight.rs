//! Prompts beside single tokens, and nobody is preempted.

use super::{Policy, Queue, Work};

/// All running sequences compute a token each; waiting ones join with as much of their prompts as the budget allows, if the cache
/// has room for their whole answers.
///
/// Source: TensorRT-LLM, in-flight batching with the policy GUARANTEED_NO_EVICT and chunked context (docs, batch-manager).
pub(super) struct InFlight;

impl Policy for InFlight {
    fn name(&self) -> &'static str {
        "in-flight"
    }

    fn mixes(&self) -> bool {
        true
    }

    fn next(&self, queue: &mut Queue) -> Vec<Work> {
        let mut works = queue.all_decodes();
        let mut budget = queue.limits.tokens.saturating_sub(works.len());
        for sequence in queue.running.clone() {
            let tokens = queue.sequences[sequence].left().min(budget);
            if tokens > 0 && !queue.sequences[sequence].decodes() {
                works.push(Work { sequence, tokens });
                budget -= tokens;
            }
        }
        while let Some(sequence) = queue.waiting.front().copied()
            && queue.running.len() < queue.limits.sequences
        {
            let state = queue.sequences[sequence];
            if budget == 0 || !queue.hold(sequence, state.input + state.output) {
                break;
            }
            queue.admit();
            let tokens = state.left().min(budget);
            works.push(Work { sequence, tokens });
            budget -= tokens;
        }
        works
    }
}
