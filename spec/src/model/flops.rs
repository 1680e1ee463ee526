//! Model FLOPs: the matrix products that a training iteration cannot do without.
//!
//! Recomputation, norms, activations, the optimizer and padding of the vocabulary are not counted, as in MFU
//! (arXiv 2204.02311, appendix B). For a GPT the count is the closed form of arXiv 2104.04473, section 5, and
//! arXiv 2205.05198, appendix A:
//!
//! F = 72 B s l h² (1 + s / (6 h) + V / (12 l h))
//!
//! B sequences, s tokens each, l blocks, h hidden width, V vocabulary.

use super::{Attention, Block, FeedForward, Mask, Mlp, Model};
use crate::units::Flops;
use serde::{Deserialize, Serialize};

/// How the scores of causal attention are counted; sources differ, so a printed figure names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionCount {
    /// As if every query saw every key of the sequence, or of its window: what unfused kernels compute.
    Full,
    /// Only the keys that the mask lets a query see, half of them without a window: what fused kernels compute.
    CausalHalved,
}

impl Model {
    /// Model FLOPs of the forward pass of one sequence of `seq` tokens.
    ///
    /// In an encoder-decoder both stacks read `seq` tokens, and the head runs on the decoder's.
    pub fn forward_flops(&self, seq: usize, count: AttentionCount) -> Flops {
        let blocks: Flops = self
            .blocks
            .iter()
            .map(|run| run.count as f64 * run.block.forward_flops(self.hidden, seq, count))
            .sum();
        blocks + self.head_flops(seq)
    }

    /// Model FLOPs of one training iteration on one sequence of `seq` tokens: the backward pass computes two
    /// products, for inputs and for weights, where the forward pass computes one.
    pub fn training_flops(&self, seq: usize, count: AttentionCount) -> Flops {
        3.0 * self.forward_flops(seq, count)
    }

    /// Those of them that have no weights: scores and weighted sums of all blocks.
    pub fn core_flops(&self, seq: usize, count: AttentionCount) -> Flops {
        let of_block = |block: &Block| {
            let attentions = std::iter::once(&block.attention).chain(&block.cross_attention);
            attentions.map(|attention| core_flops(attention, seq, count)).sum::<f64>()
        };
        Flops::new(self.blocks.iter().map(|run| run.count as f64 * of_block(&run.block)).sum())
    }

    /// How many blocks have as many model FLOPs as the head, on sequences of `seq` tokens: blocks of the mean, if they differ.
    pub fn head_in_blocks(&self, seq: usize) -> f64 {
        let whole = self.forward_flops(seq, AttentionCount::CausalHalved).get();
        let head = self.head_flops(seq).get();
        self.layers() as f64 * head / (whole - head)
    }

    /// 2 s h V, and further products of some models: the head's transform (BERT), the bridges between
    /// embeddings and a residual stream of another width (OPT 350M), the pooler on one token (BERT).
    fn head_flops(&self, seq: usize) -> Flops {
        let hidden = self.hidden as f64;
        let width = self.embedding.width.unwrap_or(self.hidden) as f64;
        let bridges = if self.embedding.width.is_some() { 2.0 * hidden * width } else { 0.0 };
        let transform = if self.head.transform { hidden * hidden } else { 0.0 };
        let pooler = if self.head.pooler { 2.0 * hidden * hidden } else { 0.0 };
        let per_token = 2.0 * (width * self.vocab as f64 + transform + bridges);
        Flops::new(seq as f64 * per_token + pooler)
    }
}

impl Block {
    /// Model FLOPs of the forward pass of one sequence of `seq` tokens through one block.
    pub fn forward_flops(&self, hidden: usize, seq: usize, count: AttentionCount) -> Flops {
        let attentions = std::iter::once(&self.attention).chain(&self.cross_attention);
        let attention: f64 = attentions
            .map(|attention| {
                seq as f64 * projection_flops(attention, hidden as f64) + core_flops(attention, seq, count)
            })
            .sum();
        Flops::new(attention + seq as f64 * mlp_flops(&self.mlp, hidden as f64))
    }
}

/// FLOPs per token of the query, key, value and output projections.
///
/// 2 h (a d + k (d + e) + a e), with a query heads, k key and value heads, d and e the widths of a key and of a value;
/// with latent attention of ranks q and c and rotary width r:
/// 2 (h q + q a d + h (c + r) + c a (d − r + e) + a e h).
///
/// An output gate adds 2 h a d; an indexer of i heads of width j, from queries of width u, 2 (u i j + h j + h i). With a state
/// there are k query and key heads and a heads of values, gates of these and g gates of the state:
/// 2 h (2 k d + 2 a e + g a + a e).
fn projection_flops(attention: &Attention, hidden: f64) -> f64 {
    let (heads, kv_heads) = (attention.heads as f64, attention.kv_heads as f64);
    let (key, value) = (attention.head_dim as f64, attention.value_head_dim as f64);
    if let Some(recurrence) = &attention.recurrence {
        let gates = recurrence.rule.gates() as f64;
        return 2.0 * hidden * (2.0 * kv_heads * key + 3.0 * heads * value + gates * heads);
    }
    let indexer = attention.indexer.as_ref().map_or(0.0, |indexer| {
        let from =
            attention.latent.as_ref().and_then(|latent| latent.query_rank).map_or(hidden, |rank| rank as f64);
        let (heads, width) = (indexer.heads as f64, indexer.head_dim as f64);
        2.0 * (from * heads * width + hidden * (width + heads))
    });
    let gate = if attention.output_gate { heads * key } else { 0.0 };
    let inputs = match &attention.latent {
        None => hidden * (heads * key + gate + kv_heads * (key + value)),
        Some(latent) => {
            let (rank, rotary) = (latent.kv_rank as f64, latent.rotary_head_dim as f64);
            let queries = match latent.query_rank {
                Some(query_rank) => query_rank as f64 * (hidden + heads * key),
                None => hidden * heads * key,
            };
            queries + hidden * (rank + rotary) + rank * heads * (key - rotary + value)
        }
    };
    indexer + 2.0 * (inputs + heads * value * hidden)
}

/// FLOPs per sequence of the scores and of the weighted sum of the values: 2 a (d + e) for each pair of a query and a key.
///
/// An indexer of i heads of width j adds 2 i j for each pair; of these pairs the attention itself has as many as with a window
/// of the picked keys. With a state: f a d e for each token (`Rule::flops`), as if token by token.
fn core_flops(attention: &Attention, seq: usize, count: AttentionCount) -> f64 {
    let widths = (attention.head_dim + attention.value_head_dim) as f64;
    if let Some(recurrence) = &attention.recurrence {
        let state = (attention.head_dim * attention.value_head_dim) as f64;
        return seq as f64 * recurrence.rule.flops() * attention.heads as f64 * state;
    }
    let mut pairs = counted_pairs(attention.mask, seq, count);
    let mut indexed = 0.0;
    if let Some(indexer) = &attention.indexer {
        indexed = 2.0 * (indexer.heads * indexer.head_dim) as f64 * pairs;
        pairs = pairs.min(counted_pairs(Mask::Window(indexer.keys), seq, count));
    }
    indexed + 2.0 * attention.heads as f64 * widths * pairs
}

/// Pairs of a query and a key that count in a sequence of s tokens.
///
/// Without a mask s². Causal s², or s²/2: halving leaves out half of the diagonal, as in published figures. A window
/// of w < s is w s, or w s − w²/2, which by the same convention is s²/2 at w = s.
fn counted_pairs(mask: Mask, seq: usize, count: AttentionCount) -> f64 {
    let s = seq as f64;
    let window = match mask {
        Mask::Full => return s * s,
        Mask::Causal => s,
        Mask::Window(window) => (window as f64).min(s),
    };
    match count {
        AttentionCount::Full => window * s,
        AttentionCount::CausalHalved => window * s - window * window / 2.0,
    }
}

/// FLOPs per token of the feed-forward part: with experts those that a token visits, the shared one and the router.
fn mlp_flops(mlp: &Mlp, hidden: f64) -> f64 {
    match mlp {
        Mlp::Dense(dense) => feed_forward_flops(dense, hidden),
        Mlp::Experts(experts) => {
            let router = 2.0 * hidden * experts.count as f64;
            let routed = experts.per_token as f64 * feed_forward_flops(&experts.expert, hidden);
            let shared = experts.shared.as_ref().map_or(0.0, |shared| feed_forward_flops(shared, hidden));
            let gate = if experts.shared_gate { 2.0 * hidden } else { 0.0 };
            router + routed + shared + gate
        }
    }
}

/// FLOPs per token of two matrices, or of three with a gate: 2 h f each.
fn feed_forward_flops(mlp: &FeedForward, hidden: f64) -> f64 {
    let matrices = if mlp.gated { 3.0 } else { 2.0 };
    matrices * 2.0 * hidden * mlp.width as f64
}
