//! MiniMax-M2: experts in every block, queries and keys normalised (transformers, `MiniMaxM2Config`).
//!
//! Its norms of queries and keys are as wide as all heads together; a `Model` has them as wide as one head.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat, routed};
use crate::error::SpecError;
use crate::limits::HIDDEN;
use crate::model::{Attention, Experts, Mlp, Model};

/// Reads a `minimax_m2` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(8), head_dim: Some(128) })?;
    let head_dim = decoder.attention.head_dim;
    let rotated = config.optional_count("rotary_dim", HIDDEN)?.filter(|rotated| *rotated < head_dim);
    let attention = Attention { qk_norm: true, rotary_head_dim: rotated, ..decoder.attention.clone() };
    let experts = routed(config, "num_local_experts", gated_mlp(config, "intermediate_size")?)?;
    let block = decoder.block(attention, Mlp::Experts(Experts { router_bias: true, ..experts }));
    decoder.model(config, repeat(decoder.layers, block), head(config, false)?)
}
