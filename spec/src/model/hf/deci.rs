//! DeciLM (huggingface.co/Deci/DeciLM-7B, config.json): LLaMA's blocks, each with its own number of key and value heads.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, runs};
use crate::error::SpecError;
use crate::limits::KV_HEADS;
use crate::model::{Attention, Mlp, Model};

/// Reads a `deci` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let key = "num_key_value_heads_per_layer";
    let decoder = Decoder::read(config, Missing::default())?;
    let heads = decoder.attention.heads;
    let meaning = "the number of key and value heads of each block";
    let counts = config.optional_list(key, meaning)?.unwrap_or_default();
    let allows = |count: &u64| KV_HEADS.allows(*count) && heads.is_multiple_of(*count as usize);
    let counts: Option<Vec<u64>> = counts.iter().map(|count| count.as_u64().filter(allows)).collect();
    let counts = counts.filter(|counts| counts.len() == decoder.layers).ok_or_else(|| {
        config.bad(key, &format!("it holds {meaning} of the {}, each a divisor of {heads}", decoder.layers))
    })?;
    let bias = config.flag_or("attention_bias", false)?;
    let mlp = Mlp::Dense(gated_mlp(config, "intermediate_size")?);
    let blocks = counts.into_iter().map(|count| {
        let attention = Attention {
            kv_heads: count as usize,
            qkv_bias: bias,
            output_bias: bias,
            ..decoder.attention.clone()
        };
        decoder.block(attention, mlp.clone())
    });
    decoder.model(config, runs(blocks), head(config, false)?)
}
