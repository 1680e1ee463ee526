//! Llama 4: experts beside a shared one in every `interleave_moe_layer_step`-th block (transformers, `Llama4TextConfig`).
//!
//! Three of four blocks attend within chunks of positions; a `Model` has a window as long as a chunk for them, which is the most
//! that a query sees.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, routed, runs};
use crate::error::SpecError;
use crate::limits::{BLOCK, WINDOW};
use crate::model::{Attention, Experts, Mask, Mlp, Model};

/// Blocks of which the last attends to all positions.
const CHUNKED: usize = 4;

/// Reads a `llama4_text` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(8), head_dim: Some(128) })?;
    let expert = gated_mlp(config, "intermediate_size")?;
    let experts = Experts { shared: Some(expert.clone()), ..routed(config, "num_local_experts", expert)? };
    let step = config.count_or("interleave_moe_layer_step", 1, BLOCK)?;
    let has_experts = |layer: usize| (layer + 1).is_multiple_of(step);
    let dense = match (0..decoder.layers).all(has_experts) {
        true => None,
        false => Some(gated_mlp(config, "intermediate_size_mlp")?),
    };
    let chunk = config.count_or("attention_chunk_size", 8192, WINDOW)?;
    let block = |layer: usize| {
        let mask = if (layer + 1).is_multiple_of(CHUNKED) { Mask::Causal } else { Mask::Window(chunk) };
        let mlp = match &dense {
            Some(dense) if !has_experts(layer) => Mlp::Dense(dense.clone()),
            _ => Mlp::Experts(experts.clone()),
        };
        decoder.block(Attention { mask, ..decoder.attention.clone() }, mlp)
    };
    decoder.model(config, runs((0..decoder.layers).map(block)), head(config, false)?)
}
