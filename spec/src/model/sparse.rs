//! Attention to the keys that a small attention picks (DeepSeek-V3.2, "Boosting Long-Context Reasoning with DeepSeek Sparse
//! Attention", arXiv 2512.02556, section 2.1).
//!
//! The indexer has a key of its own for each token, shared by its heads, and a query for each head from the latent query. The
//! score of a pair is Σ over heads of a weight times max(0, q · k). A token sees the `keys` keys of the highest scores.

use serde::{Deserialize, Serialize};

/// The small attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Its query heads.
    pub heads: usize,
    /// Width of its queries and keys.
    pub head_dim: usize,
    /// Keys that each token sees.
    pub keys: usize,
}
