//! gpt-oss: experts with biases, and windows in every other block (arXiv 2508.10925).
//!
//! Attention sinks and the clamp of the experts' gate are not in a `Model`: they take no products and hardly any time.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, masks, routed, runs};
use crate::error::SpecError;
use crate::limits::WINDOW;
use crate::model::{Attention, Experts, FeedForward, Mlp, Model};

/// Reads a `gpt_oss` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(8), head_dim: Some(64) })?;
    let bias = config.flag_or("attention_bias", true)?;
    let attention = Attention { qkv_bias: bias, output_bias: bias, ..decoder.attention.clone() };
    let expert = FeedForward { bias: true, ..gated_mlp(config, "intermediate_size")? };
    let experts = Experts { router_bias: true, ..routed(config, "num_local_experts", expert)? };
    let window = config.optional_count("sliding_window", WINDOW)?;
    let masks = masks(config, decoder.layers, window, |layer| layer % 2 == 0)?;
    let block = |mask| decoder.block(Attention { mask, ..attention.clone() }, Mlp::Experts(experts.clone()));
    decoder.model(config, runs(masks.into_iter().map(block)), head(config, false)?)
}
