//! Grok-1: experts in every block, a norm before and after each part (github.com/xai-org/grok-1, model.py and run.py).
//!
//! The published code is not in the `transformers` library; the keys are those of the community's port.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat, routed};
use crate::error::SpecError;
use crate::model::{Activation, Block, FeedForward, Mlp, Model};

/// Reads a `grok-1` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let expert = FeedForward {
        activation: config.activation_or("hidden_act", Activation::Gelu)?,
        ..gated_mlp(config, "intermediate_size")?
    };
    let experts = routed(config, "num_experts", expert)?;
    let block = Block { norms: 4, ..decoder.block(decoder.attention.clone(), Mlp::Experts(experts)) };
    decoder.model(config, repeat(decoder.layers, block), head(config, true)?)
}
