//! LLaMA 1 to 3 (arXiv 2302.13971, 2307.09288, 2407.21783) and Mistral (arXiv 2310.06825).

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat};
use crate::error::SpecError;
use crate::limits::WINDOW;
use crate::model::{Attention, FeedForward, Mask, Mlp, Model};

/// Reads a `llama` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let bias = config.flag_or("attention_bias", false)?;
    let attention = Attention { qkv_bias: bias, output_bias: bias, ..decoder.attention.clone() };
    let mlp =
        FeedForward { bias: config.flag_or("mlp_bias", false)?, ..gated_mlp(config, "intermediate_size")? };
    let block = decoder.block(attention, Mlp::Dense(mlp));
    decoder.model(config, repeat(decoder.layers, block), head(config, false)?)
}

/// Reads a `mistral` configuration.
///
/// A missing window is one of 4096, that of the first Mistral 7B; later ones say `null` to have none.
pub fn read_mistral(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(8), head_dim: None })?;
    let window = match config.keys.contains_key("sliding_window") {
        true => config.optional_count("sliding_window", WINDOW)?,
        false => Some(4096),
    };
    let mask = window.map_or(Mask::Causal, Mask::Window);
    let attention = Attention { mask, ..decoder.attention.clone() };
    let block = decoder.block(attention, Mlp::Dense(gated_mlp(config, "intermediate_size")?));
    decoder.model(config, repeat(decoder.layers, block), head(config, false)?)
}
