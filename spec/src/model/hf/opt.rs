//! OPT (arXiv 2205.01068).

use super::config::Config;
use super::parts::{head, head_dim, multi_head, repeat};
use crate::error::SpecError;
use crate::limits::{EMBEDDING, HEADS, HIDDEN, INNER, LAYERS, POSITIONS, VOCAB};
use crate::model::{Activation, Block, DropoutRates, Embedding, FeedForward, Mlp, Model, Norm, Position};

/// Positions that the embedding holds beyond those in use: the table starts at an offset of 2.
const POSITION_OFFSET: usize = 2;

/// Reads an `opt` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let hidden = config.count("hidden_size", HIDDEN)?;
    let heads = config.count("num_attention_heads", HEADS)?;
    let head_dim = head_dim(config, ("hidden_size", hidden), ("num_attention_heads", heads))?;
    let bias = config.flag_or("enable_bias", true)?;
    let affine = config.flag_or("layer_norm_elementwise_affine", true)?;
    let norm = if affine { Norm::LayerNorm } else { Norm::LayerNormPlain };
    // OPT 350M alone has its norms after each part, and none after the last block.
    let norm_first = config.flag_or("do_layer_norm_before", true)?;
    let ends_in_norm = norm_first && !config.flag_or("_remove_final_layer_norm", false)?;
    let width = config.count_or("word_embed_proj_dim", hidden, EMBEDDING)?;
    let positions = config.count_or("max_position_embeddings", 2048, POSITIONS)?;
    let mlp = FeedForward {
        width: config.count("ffn_dim", INNER)?,
        gated: false,
        activation: config.activation_or("activation_function", Activation::Relu)?,
        bias,
    };
    let block = Block::sequential(norm, multi_head(heads, head_dim, bias), Mlp::Dense(mlp));
    Ok(Model {
        name: String::new(),
        hidden,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&[("dropout", 0.1), ("attention_dropout", 0.0)])?,
        embedding: Embedding {
            position: Position::Learned(positions + POSITION_OFFSET),
            width: Some(width).filter(|width| *width != hidden),
            token_types: 0,
            norm: None,
        },
        final_norm: ends_in_norm.then_some(norm),
        norm_epsilon: None,
        dropout_rates: Some(DropoutRates {
            embedding: 0.0,
            attention: config.probability("attention_dropout", 0.0)?,
            residual: config.probability("dropout", 0.1)?,
        })
        .filter(|rates| *rates != DropoutRates::all(0.0)),
        head: head(config, true)?,
        blocks: repeat(config.count("num_hidden_layers", LAYERS)?, block),
    })
}
