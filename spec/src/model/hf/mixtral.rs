//! Mixtral: Mistral with a mixture of experts in every block (arXiv 2401.04088).

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat, routed};
use crate::error::SpecError;
use crate::limits::WINDOW;
use crate::model::{Attention, Mask, Mlp, Model};

/// Reads a `mixtral` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(8), head_dim: None })?;
    let window = config.optional_count("sliding_window", WINDOW)?;
    let mask = window.map_or(Mask::Causal, Mask::Window);
    let attention = Attention { mask, ..decoder.attention.clone() };
    let experts = routed(config, "num_local_experts", gated_mlp(config, "intermediate_size")?)?;
    let block = decoder.block(attention, Mlp::Experts(experts));
    decoder.model(config, repeat(decoder.layers, block), head(config, false)?)
}
