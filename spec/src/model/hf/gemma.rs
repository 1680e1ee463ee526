//! Gemma 1 to 3 (arXiv 2403.08295, 2408.00118, 2503.19786), text only.

use super::config::Config;
use super::parts::{Decoder, Missing, head, masks, repeat, runs};
use crate::error::SpecError;
use crate::limits::{BLOCK, INNER, WINDOW};
use crate::model::{Activation, Attention, Block, FeedForward, Mlp, Model};

const MISSING: Missing = Missing { kv_heads: None, head_dim: Some(256) };

/// Reads a `gemma` configuration.
pub fn read_first(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, MISSING)?;
    let block = decoder.block(attention(config, &decoder)?, mlp(config)?);
    decoder.model(config, repeat(decoder.layers, block), head(config, true)?)
}

/// Reads a `gemma2` configuration: norms before and after each part, a window in every other block.
pub fn read_second(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, MISSING)?;
    let attention = attention(config, &decoder)?;
    windowed(config, &decoder, attention, 2)
}

/// Reads a `gemma3_text` configuration: also norms of queries and keys, and windows in all but every sixth block.
pub fn read_third(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, MISSING)?;
    let attention = Attention { qk_norm: true, ..attention(config, &decoder)? };
    let key = config.spelling(&["sliding_window_pattern", "_sliding_window_pattern"]);
    let pattern = config.count_or(key, 6, BLOCK)?;
    windowed(config, &decoder, attention, pattern)
}

fn attention(config: &Config, decoder: &Decoder) -> Result<Attention, SpecError> {
    let bias = config.flag_or("attention_bias", false)?;
    Ok(Attention { qkv_bias: bias, output_bias: bias, ..decoder.attention.clone() })
}

fn mlp(config: &Config) -> Result<Mlp, SpecError> {
    let key = config.spelling(&["hidden_activation", "hidden_act"]);
    let activation = config.activation_or(key, Activation::Gelu)?;
    let width = config.count("intermediate_size", INNER)?;
    Ok(Mlp::Dense(FeedForward { width, gated: true, activation, bias: false }))
}

/// Four norms a block, and every `pattern`-th block without a window.
fn windowed(
    config: &Config,
    decoder: &Decoder,
    attention: Attention,
    pattern: usize,
) -> Result<Model, SpecError> {
    let mlp = mlp(config)?;
    let window = Some(config.count_or("sliding_window", 4096, WINDOW)?);
    let masks = masks(config, decoder.layers, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
    let blocks = masks.into_iter().map(|mask| {
        let attention = Attention { mask, ..attention.clone() };
        Block { norms: 4, ..decoder.block(attention, mlp.clone()) }
    });
    decoder.model(config, runs(blocks), head(config, true)?)
}
