//! Bamba: Mamba-2 in all blocks but a few, which have attention; a gated feed-forward layer in each (transformers,
//! `BambaConfig`).

use super::config::Config;
use super::parts::{Decoder, Missing, attention, gated_mlp, head, rotary_head_dim, runs};
use crate::error::SpecError;
use crate::limits::{BLOCK, CONVOLUTION, HEAD_DIM, HEADS, TOKENS};
use crate::model::{Attention, Mlp, Model, Recurrence, Rule};

/// The part of a head that is rotated where a file does not say it.
const ROTATED: f64 = 0.5;

/// Reads a `bamba` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(8), head_dim: None })?;
    let bias = config.flag_or("attention_bias", false)?;
    let full = Attention {
        rotary_head_dim: rotary_head_dim(config, decoder.attention.head_dim, ROTATED)?,
        qkv_bias: bias,
        output_bias: bias,
        ..decoder.attention.clone()
    };
    let mamba = mamba(config, decoder.hidden)?;
    let mut mlp = gated_mlp(config, "intermediate_size")?;
    mlp.bias = config.flag_or("mlp_bias", false)?;
    let meaning = "the indices of blocks with attention";
    let indices = config.optional_list("attn_layer_indices", meaning)?.unwrap_or_default();
    let indices: Option<Vec<u64>> = indices.iter().map(|index| index.as_u64()).collect();
    let indices =
        indices.filter(|indices| indices.iter().all(|index| *index < decoder.layers as u64)).ok_or_else(
            || config.bad("attn_layer_indices", &format!("it holds {meaning}, each below their number")),
        )?;
    let blocks = (0..decoder.layers as u64).map(|layer| {
        let mixer = if indices.contains(&layer) { &full } else { &mamba };
        decoder.block(mixer.clone(), Mlp::Dense(mlp.clone()))
    });
    decoder.model(config, runs(blocks), head(config, false)?)
}

/// A Mamba-2 mixer. Its heads are `mamba_expand` times as wide as the residual stream together.
fn mamba(config: &Config, hidden: usize) -> Result<Attention, SpecError> {
    let expand = config.count_or("mamba_expand", 2, BLOCK)?;
    let heads = config.count_or("mamba_n_heads", 128, HEADS)?;
    let width = hidden.saturating_mul(expand);
    let head_dim = match config.keys.get("mamba_d_head").filter(|value| value.is_u64()) {
        Some(_) => config.count("mamba_d_head", HEAD_DIM)?,
        None => width / heads,
    };
    if heads.saturating_mul(head_dim) != width {
        let allowed = format!(
            "with heads of {head_dim} columns it must make `mamba_expand` times `hidden_size`, {width}"
        );
        return Err(config.bad("mamba_n_heads", &allowed));
    }
    let groups = config.count_or("mamba_n_groups", 1, HEADS)?;
    config.check_multiple("mamba_n_heads", ("mamba_n_groups", groups), heads)?;
    let bias = config.flag_or("mamba_proj_bias", false)?;
    let recurrence = Recurrence {
        rule: Rule::Mamba2,
        convolution: config.count_or("mamba_d_conv", 4, CONVOLUTION)?,
        convolution_bias: config.flag_or("mamba_conv_bias", true)?,
        chunk: config.count_or("mamba_chunk_size", 256, TOKENS)?,
    };
    Ok(Attention {
        value_head_dim: head_dim,
        qkv_bias: bias,
        output_bias: bias,
        recurrence: Some(recurrence),
        ..attention(heads, groups, config.count_or("mamba_d_state", 256, HEAD_DIM)?)
    })
}
