//! Token mixers with a state of fixed size: gated linear attention and Mamba-2.
//!
//! Each head keeps a matrix S of d rows (the width of a key) and e columns (of a value). A token with key k, value v and query
//! q changes and reads it, with gates a and b that are computed from the token:
//!
//! ```text
//! Mamba-2       S ← a S + b k vᵀ                 o = Sᵀ q      (arXiv 2405.21060, section 6)
//! gated delta   S ← a (I − b k kᵀ) S + b k vᵀ    o = Sᵀ q      (arXiv 2412.06464, section 3.1)
//! ```
//!
//! In training and for prompts the tokens are processed in chunks, with products within a chunk and one state from each chunk
//! to the next. Mamba-2 names keys B, queries C, values x and the heads of keys groups.

use super::Attention;
use crate::limits;
use serde::{Deserialize, Serialize};

/// What stands in place of the softmax and its growing cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recurrence {
    /// How a token changes the state.
    pub rule: Rule,
    /// Tokens that the causal convolution of queries, keys and values sees.
    pub convolution: usize,
    /// Whether the convolution has a bias for each channel.
    pub convolution_bias: bool,
    /// Tokens of a chunk.
    pub chunk: usize,
}

/// How a token changes the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The state decays, what it has for the key is replaced by the value (Qwen3-Next, Qwen3.5).
    GatedDelta,
    /// The state decays and the product of key and value is added.
    Mamba2,
}

impl Rule {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Rule::GatedDelta => "gated-delta",
            Rule::Mamba2 => "mamba-2",
        }
    }

    /// Gates that the input projection makes for each head and token: decay and strength, or one step size for both.
    pub fn gates(self) -> usize {
        match self {
            Rule::GatedDelta => 2,
            Rule::Mamba2 => 1,
        }
    }

    /// FLOPs of one token in one head, over d e: 2 for each product with a matrix of d × e. Both add k vᵀ and read Sᵀ q; the
    /// delta rule also reads Sᵀ k.
    pub fn flops(self) -> f64 {
        match self {
            Rule::GatedDelta => 6.0,
            Rule::Mamba2 => 4.0,
        }
    }
}

impl Recurrence {
    /// The counts with their keys under `model.blocks.block.attention.recurrence`, for whoever checks a plan.
    pub fn counts(&self) -> [(&'static str, usize, limits::Count); 2] {
        [("convolution", self.convolution, limits::CONVOLUTION), ("chunk", self.chunk, limits::TOKENS)]
    }
}

impl Attention {
    /// Columns of the values.
    pub fn value_columns(&self) -> usize {
        self.heads.saturating_mul(self.value_head_dim)
    }

    /// Columns of the keys, each of `kv_heads` once.
    pub fn key_columns(&self) -> usize {
        self.kv_heads.saturating_mul(self.head_dim)
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn convolved(&self) -> usize {
        self.value_columns().saturating_add(self.key_columns().saturating_mul(2))
    }
}
