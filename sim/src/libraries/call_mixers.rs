//! Calls of mixers with a state, and of sparse attention.

use super::Operands;
use std::fmt;
use trainwright_spec::model::{Attention, Rule};

/// `queries` new tokens of each of `batch` sequences through the states of one GPU's heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatePrefill {
    /// Sequences.
    pub batch: usize,
    /// Heads of values and states on this GPU.
    pub heads: usize,
    /// Heads of queries and keys on this GPU.
    pub key_heads: usize,
    /// Width of a key: rows of a state.
    pub key_dim: usize,
    /// Width of a value: columns of a state.
    pub value_dim: usize,
    /// New tokens of each sequence.
    pub queries: usize,
    /// Tokens of a chunk.
    pub chunk: usize,
    /// How a token changes the state.
    pub rule: Rule,
}

/// One new token of each of `batch` sequences through the states of one GPU's heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateDecode {
    /// Sequences.
    pub batch: usize,
    /// Heads of values and states on this GPU.
    pub heads: usize,
    /// Heads of queries and keys on this GPU.
    pub key_heads: usize,
    /// Width of a key: rows of a state.
    pub key_dim: usize,
    /// Width of a value: columns of a state.
    pub value_dim: usize,
}

/// The convolution before the states.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Convolution {
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Sequences.
    pub sequences: usize,
    /// Channels on this GPU.
    pub channels: usize,
    /// Tokens that a token sees.
    pub width: usize,
    /// Whether each sequence has one token: another kernel.
    pub step: bool,
}

/// Sparse latent attention of `queries` new tokens of each of `batch` sequences, with all its projections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparseAttention {
    /// Sequences.
    pub batch: usize,
    /// New tokens of each sequence: 1 while it generates.
    pub queries: usize,
    /// Tokens of each sequence in the cache already.
    pub history: usize,
    /// Heads on this GPU.
    pub heads: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rank of the queries.
    pub query_rank: usize,
    /// Rank of keys and values.
    pub kv_rank: usize,
    /// Width of a head without positions.
    pub plain: usize,
    /// Width of a head with positions.
    pub rotary: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Heads of the indexer.
    pub indexer_heads: usize,
    /// Width of the indexer's heads.
    pub indexer_dim: usize,
    /// Keys that a token attends to.
    pub keys: usize,
    /// Whether it is a prompt's: another kernel.
    pub prompt: bool,
    /// Format of the weights.
    pub operands: Operands,
    /// Format of the cache.
    pub cache: Operands,
}

impl SparseAttention {
    /// The call for a layer of a model, of which `heads` are on this GPU, without tokens yet; `None` if the layer has no indexer or
    /// no latent queries.
    pub fn of(
        attention: &Attention,
        hidden: usize,
        heads: usize,
        operands: Operands,
        cache: Operands,
    ) -> Option<Self> {
        let (latent, indexer) = (attention.latent.as_ref()?, attention.indexer.as_ref()?);
        Some(Self {
            batch: 0,
            queries: 0,
            history: 0,
            heads,
            hidden,
            query_rank: latent.query_rank?,
            kv_rank: latent.kv_rank,
            plain: attention.head_dim - latent.rotary_head_dim,
            rotary: latent.rotary_head_dim,
            value_head_dim: attention.value_head_dim,
            indexer_heads: indexer.heads,
            indexer_dim: indexer.head_dim,
            keys: indexer.keys,
            prompt: false,
            operands,
            cache,
        })
    }
}

impl fmt::Display for StatePrefill {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { batch, heads, key_dim, value_dim, queries, rule, .. } = self;
        let rule = rule.name();
        write!(f, "{batch} sequences, {queries} tokens, {heads} states {key_dim} x {value_dim}, {rule}")
    }
}

impl fmt::Display for StateDecode {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { batch, heads, key_dim, value_dim, .. } = self;
        write!(f, "{batch} sequences, {heads} states {key_dim} x {value_dim}")
    }
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} tokens of {} sequences, {} channels", self.tokens, self.sequences, self.channels)
    }
}

impl fmt::Display for SparseAttention {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { batch, queries, history, heads, keys, operands, .. } = self;
        let name = operands.name;
        write!(
            f,
            "{batch} sequences, {queries} tokens, history {history}, {heads} heads, {keys} keys each, {name}"
        )
    }
}
