//! Phi-3 and Phi-4 (arXiv 2404.14219): LLaMA's blocks, heads rotated in part, perhaps with a window.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat};
use crate::error::SpecError;
use crate::limits::WINDOW;
use crate::model::{Attention, Mask, Mlp, Model};

/// Reads a `phi3` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let window = config.optional_count("sliding_window", WINDOW)?;
    let mask = window.map_or(Mask::Causal, Mask::Window);
    let attention = Attention { mask, ..decoder.attention.clone() };
    let block = decoder.block(attention, Mlp::Dense(gated_mlp(config, "intermediate_size")?));
    let model = decoder.model(config, repeat(decoder.layers, block), head(config, false)?)?;
    let dropout =
        config.any_above_zero(&[("embd_pdrop", 0.0), ("resid_pdrop", 0.0), ("attention_dropout", 0.0)])?;
    Ok(Model { dropout, ..model })
}
