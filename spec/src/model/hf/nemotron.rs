//! Nemotron-4 and Minitron: squared ReLU without a gate, LayerNorm (arXiv 2402.16819, 2406.11704).

use super::config::Config;
use super::parts::{Decoder, Missing, head, repeat, rotary_head_dim};
use crate::error::SpecError;
use crate::limits::INNER;
use crate::model::{Activation, Attention, Block, FeedForward, Mlp, Model, Norm};

/// Reads a `nemotron` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let bias = config.flag_or("attention_bias", false)?;
    let rotary_head_dim = rotary_head_dim(config, decoder.attention.head_dim, 0.5)?;
    let attention =
        Attention { qkv_bias: bias, output_bias: bias, rotary_head_dim, ..decoder.attention.clone() };
    let mlp = FeedForward {
        width: config.count("intermediate_size", INNER)?,
        gated: false,
        activation: config.activation_or("hidden_act", Activation::SquaredRelu)?,
        bias: config.flag_or("mlp_bias", false)?,
    };
    // Its LayerNorm stores the gain less one, which changes neither size nor cost.
    let block = Block { norm: Norm::LayerNorm, ..decoder.block(attention, Mlp::Dense(mlp)) };
    let model = decoder.model(config, repeat(decoder.layers, block), head(config, false)?)?;
    Ok(Model { final_norm: Some(Norm::LayerNorm), ..model })
}
