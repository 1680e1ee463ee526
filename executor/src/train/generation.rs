//! Generating tokens: what is asked for, under which plan, in how much memory, and how a token is chosen from its logits.
//!
//! ```text
//! checkpoint ─► model, tokenizer        plan's mesh ─► layout (the plan of the passes) ─► lower ─► forward calls
//! prompt ─► tokens ─► a pass over the prompt ─► logits ─► sampling ─► a token ─► a pass over it ─► …
//! scheduler ─► batch of several sequences' tokens ─► a pass ─► a token for each of them ─► scheduler
//! ```
//!
//! The ranks run the forward ops of a program, as a validation does (`rank/passes.rs`).

pub(crate) mod batch;
pub(crate) mod checkpoint;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod sampling;
pub(crate) mod text;
pub(crate) mod weight_format;

use batch::BatchFeed;
use sampling::Sampling;
use serde::Serialize;
use std::num::NonZeroUsize;
use weight_format::WeightFormat;

/// What to generate. Every process of a run has the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generation {
    /// The tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens to generate behind each.
    pub tokens: NonZeroUsize,
    /// A token behind which no other one follows.
    pub stop: Option<u32>,
    /// How tokens are drawn; `None` takes the likeliest.
    pub sampling: Option<Sampling>,
    /// How weights are kept.
    pub weights: WeightFormat,
    /// Whether completions have the logits from which their tokens were chosen.
    #[serde(skip)] // Only what is reported.
    pub return_logits: bool,
}

impl Generation {
    /// The most tokens of a sequence, prompt included.
    pub fn longest(&self) -> usize {
        self.prompts.iter().map(Vec::len).max().unwrap_or(0).saturating_add(self.tokens.get())
    }
}

/// The tokens behind a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Those generated.
    pub tokens: Vec<u32>,
    /// Seconds from the prompt to its first token.
    pub prefill: f64,
    /// Seconds of all other tokens.
    pub decode: f64,
    /// Of each token, if they were asked for and rank 0's data rank has made them.
    pub logits: Vec<Vec<f32>>,
}

/// What passes over batches need. Every process of a run has the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Serving {
    /// The most tokens of a sequence, prompt included.
    pub longest: usize,
    /// The most tokens of a batch.
    pub tokens: usize,
    /// The most sequences of a batch.
    pub sequences: usize,
    /// The most tokens whose keys and values are kept at once.
    pub cached: usize,
    /// How weights are kept.
    pub weights: WeightFormat,
    /// Whether chosen tokens have the logits from which they were chosen.
    #[serde(skip)] // Only what is reported.
    pub return_logits: bool,
    /// Where batches come from.
    #[serde(skip)] // A handle of this process.
    pub(crate) feed: BatchFeed,
}

impl Serving {
    /// Of sequences of at most `longest` tokens, in batches of at most `tokens` tokens and `sequences` sequences, with `cached`
    /// tokens in the caches at once.
    pub fn new([longest, tokens, sequences, cached]: [usize; 4], weights: WeightFormat) -> Self {
        Self { longest, tokens, sequences, cached, weights, return_logits: false, feed: BatchFeed::default() }
    }
}

/// A text that a training continues now and then.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainingSample {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens to generate behind it, the likeliest ones.
    pub tokens: NonZeroUsize,
    /// Steps from one sample to the next; the last step has one too.
    pub every: NonZeroUsize,
}

impl TrainingSample {
    /// Whether it follows on a step, of which `last` is the run's last one.
    pub(crate) fn is_due(&self, step: usize, last: usize) -> bool {
        step == last || step.is_multiple_of(self.every.get())
    }
}
