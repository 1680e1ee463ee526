//! OLMo 2 (arXiv 2501.00656): norms behind attention and feed-forward layer in place of before them, and norms of queries and
//! keys.
//!
//! Its norms of queries and keys are as wide as all heads together; a `Model` has them as wide as one head.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat};
use crate::error::SpecError;
use crate::model::{Attention, Mlp, Model};

/// Reads an `olmo2` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let bias = config.flag_or("attention_bias", false)?;
    let attention =
        Attention { qkv_bias: bias, output_bias: bias, qk_norm: true, ..decoder.attention.clone() };
    let block = decoder.block(attention, Mlp::Dense(gated_mlp(config, "intermediate_size")?));
    decoder.model(config, repeat(decoder.layers, block), head(config, false)?)
}
