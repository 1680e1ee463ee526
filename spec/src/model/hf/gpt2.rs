//! GPT-2, whose shape GPT-3 and Megatron's models share (OpenAI 2019; arXiv 2005.14165; arXiv 1909.08053).

use super::config::Config;
use super::parts::{embedding, head, head_dim, multi_head, repeat};
use crate::error::SpecError;
use crate::limits::{HEADS, HIDDEN, INNER, LAYERS, POSITIONS, VOCAB};
use crate::model::{Activation, Block, DropoutRates, FeedForward, Mlp, Model, Norm, Position};

/// Reads a `gpt2` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let hidden_key = config.spelling(&["n_embd", "hidden_size"]);
    let heads_key = config.spelling(&["n_head", "num_attention_heads"]);
    let layers_key = config.spelling(&["n_layer", "num_hidden_layers"]);
    let positions_key = config.spelling(&["n_positions", "max_position_embeddings"]);
    let hidden = config.count(hidden_key, HIDDEN)?;
    let heads = config.count(heads_key, HEADS)?;
    let positions = config.count_or(positions_key, 1024, POSITIONS)?;
    let mlp = FeedForward {
        width: config.count_or("n_inner", 4 * hidden, INNER)?,
        gated: false,
        activation: config.activation_or("activation_function", Activation::Gelu)?,
        bias: true,
    };
    let block = Block::sequential(
        Norm::LayerNorm,
        multi_head(heads, head_dim(config, (hidden_key, hidden), (heads_key, heads))?, true),
        Mlp::Dense(mlp),
    );
    Ok(Model {
        name: String::new(),
        hidden,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&[("resid_pdrop", 0.1), ("embd_pdrop", 0.1), ("attn_pdrop", 0.1)])?,
        dropout_rates: Some(DropoutRates {
            embedding: config.probability("embd_pdrop", 0.1)?,
            attention: config.probability("attn_pdrop", 0.1)?,
            residual: config.probability("resid_pdrop", 0.1)?,
        })
        .filter(|rates| ![DropoutRates::all(0.0), DropoutRates::all(0.1)].contains(rates)),
        embedding: embedding(Position::Learned(positions)),
        final_norm: Some(Norm::LayerNorm),
        norm_epsilon: None,
        head: head(config, true)?,
        blocks: repeat(config.count(layers_key, LAYERS)?, block),
    })
}
