//! GPT-J: attention and MLP in parallel behind one norm (github.com/kingoflolz/mesh-transformer-jax).

use super::config::Config;
use super::parts::{embedding, head, head_dim, multi_head, repeat};
use crate::error::SpecError;
use crate::limits::{HEADS, HIDDEN, INNER, LAYERS, VOCAB};
use crate::model::{Activation, Attention, Block, FeedForward, Head, Mlp, Model, Norm, Position};

/// Reads a `gptj` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let hidden = config.count("n_embd", HIDDEN)?;
    let heads = config.count("n_head", HEADS)?;
    let head_dim = head_dim(config, ("n_embd", hidden), ("n_head", heads))?;
    let rotated = config.count_or("rotary_dim", 64, HIDDEN)?;
    let mlp = FeedForward {
        width: config.optional_count("n_inner", INNER)?.unwrap_or(4 * hidden),
        gated: false,
        activation: config.activation_or("activation_function", Activation::Gelu)?,
        bias: true,
    };
    let block = Block {
        norm: Norm::LayerNorm,
        norms: 1,
        parallel: true,
        attention: Attention {
            rotary: true,
            rotary_head_dim: (rotated < head_dim).then_some(rotated),
            ..multi_head(heads, head_dim, false)
        },
        cross_attention: None,
        mlp: Mlp::Dense(mlp),
    };
    let dropout = [("resid_pdrop", 0.0), ("embd_pdrop", 0.0), ("attn_pdrop", 0.0)];
    Ok(Model {
        name: String::new(),
        hidden,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&dropout)?,
        embedding: embedding(Position::Rotary),
        final_norm: Some(Norm::LayerNorm),
        norm_epsilon: None,
        dropout_rates: None,
        head: Head { bias: true, ..head(config, false)? },
        blocks: repeat(config.count("n_layer", LAYERS)?, block),
    })
}
