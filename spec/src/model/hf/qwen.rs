//! Qwen 2 and 2.5 (arXiv 2407.10671, 2412.15115) and Qwen 3 (arXiv 2505.09388), dense and with experts.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, masks, routed, runs};
use crate::error::SpecError;
use crate::limits::{BLOCK, INNER, WINDOW};
use crate::model::{Attention, Experts, FeedForward, Mask, Mlp, Model};

/// Reads a `qwen2` configuration.
pub fn read_second(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let attention = Attention { qkv_bias: true, ..decoder.attention.clone() };
    dense(config, &decoder, attention)
}

/// Reads a `qwen3` configuration.
pub fn read_third(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: None, head_dim: Some(128) })?;
    let attention = third_attention(config, &decoder)?;
    dense(config, &decoder, attention)
}

/// Reads a `qwen2_moe` configuration: routed experts and one shared expert with a learned gate.
pub fn read_second_experts(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let attention = Attention { qkv_bias: config.flag_or("qkv_bias", true)?, ..decoder.attention.clone() };
    let width = config.count("shared_expert_intermediate_size", INNER.or_zero())?;
    let expert = gated_mlp(config, "moe_intermediate_size")?;
    let shared = (width > 0).then(|| FeedForward { width, ..expert.clone() });
    let experts = Experts { shared_gate: shared.is_some(), shared, ..routed(config, "num_experts", expert)? };
    let last = config.count_or("max_window_layers", 28, BLOCK.or_zero())?;
    let masks = masks(config, decoder.layers, window(config)?, |layer| layer % 2 == 0 && layer < last)?;
    sparse(config, &decoder, attention, experts, masks)
}

/// Reads a `qwen3_moe` configuration.
pub fn read_third_experts(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let attention = third_attention(config, &decoder)?;
    let key = config.spelling(&["num_experts", "num_local_experts"]);
    let experts = routed(config, key, gated_mlp(config, "moe_intermediate_size")?)?;
    let masks = masks(config, decoder.layers, window(config)?, |_| true)?;
    sparse(config, &decoder, attention, experts, masks)
}

pub(super) fn third_attention(config: &Config, decoder: &Decoder) -> Result<Attention, SpecError> {
    let bias = config.flag_or("attention_bias", false)?;
    Ok(Attention { qkv_bias: bias, output_bias: bias, qk_norm: true, ..decoder.attention.clone() })
}

/// The window, which counts only if a second key says so.
fn window(config: &Config) -> Result<Option<usize>, SpecError> {
    match config.flag_or("use_sliding_window", false)? {
        true => Ok(Some(config.count_or("sliding_window", 4096, WINDOW)?)),
        false => Ok(None),
    }
}

/// One feed-forward layer in every block; windows only from block `max_window_layers` on.
fn dense(config: &Config, decoder: &Decoder, attention: Attention) -> Result<Model, SpecError> {
    let mlp = Mlp::Dense(gated_mlp(config, "intermediate_size")?);
    let first = config.count_or("max_window_layers", 28, BLOCK.or_zero())?;
    let masks = masks(config, decoder.layers, window(config)?, |layer| layer >= first)?;
    let blocks = masks.into_iter().map(|mask| decoder.block(masked(&attention, mask), mlp.clone()));
    decoder.model(config, runs(blocks), head(config, false)?)
}

/// Experts in every `decoder_sparse_step`-th block that `mlp_only_layers` does not name.
fn sparse(
    config: &Config,
    decoder: &Decoder,
    attention: Attention,
    experts: Experts,
    masks: Vec<Mask>,
) -> Result<Model, SpecError> {
    let step = config.count_or("decoder_sparse_step", 1, BLOCK)?;
    let meaning = "the indices of blocks without experts";
    let listed = config.optional_list("mlp_only_layers", meaning)?.unwrap_or_default();
    let listed: Option<Vec<u64>> = listed.iter().map(|index| index.as_u64()).collect();
    let listed = listed.ok_or_else(|| config.bad("mlp_only_layers", &format!("it holds {meaning}")))?;
    let has_experts = |layer: usize| !listed.contains(&(layer as u64)) && (layer + 1).is_multiple_of(step);
    // The dense width is not read where no block has it: their files may lack the key.
    let dense = match (0..decoder.layers).all(has_experts) {
        true => None,
        false => Some(gated_mlp(config, "intermediate_size")?),
    };
    let mlp = |layer: usize| match &dense {
        Some(dense) if !has_experts(layer) => Mlp::Dense(dense.clone()),
        _ => Mlp::Experts(experts.clone()),
    };
    let blocks = masks.into_iter().enumerate();
    let blocks = blocks.map(|(layer, mask)| decoder.block(masked(&attention, mask), mlp(layer)));
    decoder.model(config, runs(blocks), head(config, false)?)
}

fn masked(attention: &Attention, mask: Mask) -> Attention {
    Attention { mask, ..attention.clone() }
}
