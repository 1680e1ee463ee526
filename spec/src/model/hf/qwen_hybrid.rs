//! Qwen3-Next and Qwen3.5: three blocks of four have a gated delta net, the fourth gated attention (transformers,
//! `Qwen3NextConfig`, `Qwen3_5TextConfig` and `Qwen3_5MoeTextConfig`).
//!
//! Their modules for multi-token prediction and Qwen3.5's vision tower are not read.

use super::config::Config;
use super::parts::{Decoder, Missing, attention, gated_mlp, head, rotary_head_dim, routed, runs};
use crate::error::SpecError;
use crate::limits::{BLOCK, CONVOLUTION, HEAD_DIM, HEADS, INNER};
use crate::model::{Attention, Experts, FeedForward, Mlp, Model, Recurrence, Rule};

/// Tokens of a chunk in the kernels of the library flash-linear-attention, which transformers calls.
const CHUNK: usize = 64;

/// The part of a head that is rotated where a file does not say it.
const ROTATED: f64 = 0.25;

/// Reads a `qwen3_5_text` configuration: one feed-forward layer in every block.
pub fn read_dense(config: &Config) -> Result<Model, SpecError> {
    let mlp = Mlp::Dense(gated_mlp(config, "intermediate_size")?);
    read(config, |_| mlp.clone())
}

/// Reads a `qwen3_next` or `qwen3_5_moe_text` configuration: experts and a shared one with a gate, but for the blocks in
/// `mlp_only_layers` and those between every `decoder_sparse_step`-th.
pub fn read_experts(config: &Config) -> Result<Model, SpecError> {
    let width = config.count("shared_expert_intermediate_size", INNER.or_zero())?;
    let expert = gated_mlp(config, "moe_intermediate_size")?;
    let shared = (width > 0).then(|| FeedForward { width, ..expert.clone() });
    let experts = Experts { shared_gate: shared.is_some(), shared, ..routed(config, "num_experts", expert)? };
    let step = config.count_or("decoder_sparse_step", 1, BLOCK)?;
    let listed =
        config.optional_list("mlp_only_layers", "the indices of blocks without experts")?.unwrap_or_default();
    let dense = match step > 1 || !listed.is_empty() {
        true => Some(gated_mlp(config, "intermediate_size")?),
        false => None,
    };
    let has_experts = |layer: usize| {
        !listed.iter().any(|index| index.as_u64() == Some(layer as u64)) && (layer + 1).is_multiple_of(step)
    };
    read(config, |layer| match &dense {
        Some(dense) if !has_experts(layer) => Mlp::Dense(dense.clone()),
        _ => Mlp::Experts(experts.clone()),
    })
}

fn read(config: &Config, mlp: impl Fn(usize) -> Mlp) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(2), head_dim: Some(256) })?;
    let bias = config.flag_or("attention_bias", false)?;
    let full = Attention {
        rotary_head_dim: rotary_head_dim(config, decoder.attention.head_dim, ROTATED)?,
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: true,
        output_gate: config.flag_or("attn_output_gate", true)?,
        ..decoder.attention.clone()
    };
    let linear = linear(config)?;
    let is_full = full_layers(config, decoder.layers)?;
    let blocks = is_full.into_iter().enumerate().map(|(layer, is_full)| {
        decoder.block(if is_full { full.clone() } else { linear.clone() }, mlp(layer))
    });
    decoder.model(config, runs(blocks), head(config, false)?)
}

/// The gated delta net.
fn linear(config: &Config) -> Result<Attention, SpecError> {
    let heads = config.count("linear_num_value_heads", HEADS)?;
    let key_heads = config.count("linear_num_key_heads", HEADS)?;
    config.check_multiple("linear_num_value_heads", ("linear_num_key_heads", key_heads), heads)?;
    let recurrence = Recurrence {
        rule: Rule::GatedDelta,
        convolution: config.count_or("linear_conv_kernel_dim", 4, CONVOLUTION)?,
        convolution_bias: false,
        chunk: CHUNK,
    };
    Ok(Attention {
        value_head_dim: config.count("linear_value_head_dim", HEAD_DIM)?,
        recurrence: Some(recurrence),
        ..attention(heads, key_heads, config.count("linear_key_head_dim", HEAD_DIM)?)
    })
}

/// Which blocks have attention: by `layer_types`, or the last of every `full_attention_interval`.
fn full_layers(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let meaning = "\"full_attention\" or \"linear_attention\" for each block";
    let Some(kinds) = config.optional_list("layer_types", meaning)? else {
        let interval = config.count_or("full_attention_interval", 4, BLOCK)?;
        return Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(interval)).collect());
    };
    let kinds = kinds.iter().map(|kind| match kind.as_str() {
        Some("full_attention") => Some(true),
        Some("linear_attention") => Some(false),
        _ => None,
    });
    let kinds: Option<Vec<bool>> = kinds.collect();
    kinds
        .filter(|kinds| kinds.len() == layers)
        .ok_or_else(|| config.bad("layer_types", &format!("it holds {meaning} of the {layers}")))
}
