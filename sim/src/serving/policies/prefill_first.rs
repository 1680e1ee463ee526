//! Steps of prompts before steps of single tokens.

use super::{Policy, Queue, Work};

/// While sequences wait and there is room for them, a step computes prompts alone, in chunks of the budget; else all running
/// sequences compute a token each.
///
/// Source: vLLM v0 (arXiv 2309.06180, section 4) and SGLang without mixed chunks.
pub(super) struct PrefillFirst;

impl Policy for PrefillFirst {
    fn name(&self) -> &'static str {
        "prefill-first"
    }

    fn mixes(&self) -> bool {
        false
    }

    fn next(&self, queue: &mut Queue) -> Vec<Work> {
        let mut budget = queue.limits.tokens;
        let mut works = Vec::new();
        for index in 0..queue.running.len() {
            let sequence = queue.running[index];
            let state = queue.sequences[sequence];
            let tokens = state.left().min(budget);
            if state.decodes() || tokens == 0 || !queue.hold(sequence, state.computed + tokens) {
                continue;
            }
            works.push(Work { sequence, tokens });
            budget -= tokens;
        }
        queue.admit_chunks(budget, &mut works);
        if works.is_empty() { queue.all_decodes() } else { works }
    }
}
