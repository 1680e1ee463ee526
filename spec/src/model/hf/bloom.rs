//! BLOOM (arXiv 2211.05100): positions by ALiBi, a norm after the embedding.

use super::config::Config;
use super::parts::{embedding, head, head_dim, multi_head, repeat};
use crate::error::SpecError;
use crate::limits::{HEADS, HIDDEN, LAYERS, VOCAB};
use crate::model::{Activation, Block, Embedding, FeedForward, Mlp, Model, Norm, Position};

/// Reads a `bloom` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let hidden_key = config.spelling(&["hidden_size", "n_embed"]);
    let heads_key = config.spelling(&["n_head", "num_attention_heads"]);
    let layers_key = config.spelling(&["n_layer", "num_hidden_layers"]);
    let hidden = config.count(hidden_key, HIDDEN)?;
    let heads = config.count(heads_key, HEADS)?;
    let mlp = FeedForward { width: 4 * hidden, gated: false, activation: Activation::Gelu, bias: true };
    let block = Block::sequential(
        Norm::LayerNorm,
        multi_head(heads, head_dim(config, (hidden_key, hidden), (heads_key, heads))?, true),
        Mlp::Dense(mlp),
    );
    Ok(Model {
        name: String::new(),
        hidden,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&[("hidden_dropout", 0.0), ("attention_dropout", 0.0)])?,
        embedding: Embedding { norm: Some(Norm::LayerNorm), ..embedding(Position::Alibi) },
        final_norm: Some(Norm::LayerNorm),
        norm_epsilon: None,
        dropout_rates: None,
        head: head(config, true)?,
        blocks: repeat(config.count(layers_key, LAYERS)?, block),
    })
}
