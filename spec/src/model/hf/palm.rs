//! PaLM (arXiv 2204.02311, section 2): attention and a gated feed-forward layer beside each other behind one norm, one head of
//! keys and values for all queries, no biases. It never had a configuration in the transformers library; the keys are LLaMA's.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat};
use crate::error::SpecError;
use crate::model::{Block, Mlp, Model, Norm};

/// Reads a `palm` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing { kv_heads: Some(1), head_dim: Some(256) })?;
    let mlp = Mlp::Dense(gated_mlp(config, "intermediate_size")?);
    let block = Block {
        norm: Norm::RmsNorm,
        norms: 1,
        parallel: true,
        attention: decoder.attention.clone(),
        cross_attention: None,
        mlp,
    };
    decoder.model(config, repeat(decoder.layers, block), head(config, true)?)
}
