//! What the time of a step on ranks depends on.

use trainwright_executor::Batch;
use trainwright_sim::serving::{Queue, Work};

/// Counts of a step's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StepShape {
    /// New tokens: rows of every product but that of the logits.
    pub rows: usize,
    /// Sequences among which they are.
    pub parts: usize,
    /// Sequences that get a token: rows of the logits.
    pub sampled: usize,
    /// Tokens that the new ones attend to, summed over these.
    pub keys: usize,
}

impl StepShape {
    /// That of the next step of a queue.
    pub fn of(queue: &Queue, works: &[Work]) -> Self {
        works.iter().fold(Self::default(), |shape, work| {
            let state = &queue.sequences[work.sequence];
            shape.with(state.computed, work.tokens, state.left() == work.tokens)
        })
    }

    /// That of a batch.
    pub fn of_batch(batch: &Batch) -> Self {
        let parts = batch.parts.iter();
        parts.fold(Self::default(), |shape, part| shape.with(part.first, part.tokens.len(), part.samples))
    }

    /// With another sequence's tokens behind `before` of it.
    fn with(self, before: usize, tokens: usize, samples: bool) -> Self {
        Self {
            rows: self.rows + tokens,
            parts: self.parts + 1,
            sampled: self.sampled + usize::from(samples),
            keys: self.keys + tokens * before + tokens * (tokens + 1) / 2,
        }
    }
}
