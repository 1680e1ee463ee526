//! GPT-NeoX and Pythia: attention and MLP in parallel (arXiv 2204.06745).

use super::config::Config;
use super::parts::{embedding, head, head_dim, multi_head, repeat, rotary_head_dim};
use crate::error::SpecError;
use crate::limits::{HEADS, HIDDEN, INNER, LAYERS, VOCAB};
use crate::model::{Activation, Attention, Block, FeedForward, Mlp, Model, Norm, Position};

/// Reads a `gpt_neox` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let hidden = config.count("hidden_size", HIDDEN)?;
    let heads = config.count("num_attention_heads", HEADS)?;
    let head_dim = head_dim(config, ("hidden_size", hidden), ("num_attention_heads", heads))?;
    let bias = config.flag_or("attention_bias", true)?;
    let mlp = FeedForward {
        width: config.count("intermediate_size", INNER)?,
        gated: false,
        activation: config.activation_or("hidden_act", Activation::Gelu)?,
        bias: true,
    };
    let block = Block {
        norm: Norm::LayerNorm,
        // Each branch has a norm, though both read the same input.
        norms: 2,
        parallel: config.flag_or("use_parallel_residual", true)?,
        attention: Attention {
            rotary: true,
            rotary_head_dim: rotary_head_dim(config, head_dim, 0.25)?,
            ..multi_head(heads, head_dim, bias)
        },
        cross_attention: None,
        mlp: Mlp::Dense(mlp),
    };
    Ok(Model {
        name: String::new(),
        hidden,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&[("hidden_dropout", 0.0), ("attention_dropout", 0.0)])?,
        embedding: embedding(Position::Rotary),
        final_norm: Some(Norm::LayerNorm),
        norm_epsilon: None,
        dropout_rates: None,
        head: head(config, false)?,
        blocks: repeat(config.count("num_hidden_layers", LAYERS)?, block),
    })
}
