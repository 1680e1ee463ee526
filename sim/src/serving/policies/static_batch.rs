//! A batch begins and ends together.

use super::{Policy, Queue, Work};

/// Where nobody runs, all that wait and have room begin with their whole prompts; then all compute a token each until the last
/// has ended.
pub(super) struct StaticBatch;

impl Policy for StaticBatch {
    fn name(&self) -> &'static str {
        "static"
    }

    fn mixes(&self) -> bool {
        false
    }

    fn keeps_budget(&self) -> bool {
        false
    }

    fn next(&self, queue: &mut Queue) -> Vec<Work> {
        if !queue.running.is_empty() {
            return queue.all_decodes();
        }
        let mut works = Vec::new();
        while let Some(sequence) = queue.waiting.front().copied()
            && queue.running.len() < queue.limits.sequences
        {
            let state = queue.sequences[sequence];
            if !queue.hold(sequence, state.input + state.output) {
                break;
            }
            queue.admit();
            works.push(Work { sequence, tokens: state.left() });
        }
        works
    }
}
