//! Falcon (arXiv 2311.16867), under its old names `RefinedWebModel` and `RefinedWeb` too.
//!
//! ```text
//!                        key and value heads   norms per block       parallel
//! falcon-rw (alibi)      as many as query      2                     no
//! falcon-7b              1                     1, shared             yes
//! falcon-40b, -180b      grouped               2, one per branch     yes
//! falcon-11b             grouped               1, shared             yes
//! ```

use super::config::Config;
use super::parts::{attention, embedding, head, head_dim, repeat};
use crate::error::SpecError;
use crate::limits::{HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, NORMS, VOCAB};
use crate::model::{Activation, Attention, Block, FeedForward, Mlp, Model, Norm, Position};

/// Reads a `falcon` or `RefinedWebModel` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let grouped = config.flag_or("new_decoder_architecture", false)?;
    read_generation(config, grouped)
}

/// Reads a `RefinedWeb` configuration: falcon-40b before `new_decoder_architecture` was a key.
pub fn read_refined_web(config: &Config) -> Result<Model, SpecError> {
    read_generation(config, true)
}

fn read_generation(config: &Config, grouped: bool) -> Result<Model, SpecError> {
    let heads_key = config.spelling(&["num_attention_heads", "n_head"]);
    let layers_key = config.spelling(&["num_hidden_layers", "n_layer"]);
    let hidden = config.count("hidden_size", HIDDEN)?;
    let heads = config.count(heads_key, HEADS)?;
    let head_dim = head_dim(config, ("hidden_size", hidden), (heads_key, heads))?;
    let kv_heads = kv_heads(config, grouped, (heads_key, heads))?;
    let bias = config.flag_or("bias", false)?;
    let alibi = config.flag_or("alibi", false)?;
    let parallel = grouped || config.flag_or("parallel_attn", true)?;
    let norms = match parallel {
        true => config.count_or("num_ln_in_parallel_attn", if grouped { 2 } else { 1 }, NORMS)?,
        false => 2,
    };
    let mlp = FeedForward {
        width: config.count_or("ffn_hidden_size", 4 * hidden, INNER)?,
        gated: false,
        activation: config.activation_or("activation", Activation::Gelu)?,
        bias,
    };
    let block = Block {
        norm: Norm::LayerNorm,
        norms,
        parallel,
        attention: Attention {
            rotary: !alibi,
            qkv_bias: bias,
            output_bias: bias,
            ..attention(heads, kv_heads, head_dim)
        },
        cross_attention: None,
        mlp: Mlp::Dense(mlp),
    };
    Ok(Model {
        name: String::new(),
        hidden,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&[("hidden_dropout", 0.0), ("attention_dropout", 0.0)])?,
        embedding: embedding(if alibi { Position::Alibi } else { Position::Rotary }),
        final_norm: Some(Norm::LayerNorm),
        norm_epsilon: None,
        dropout_rates: None,
        head: head(config, true)?,
        blocks: repeat(config.count(layers_key, LAYERS)?, block),
    })
}

/// Only the newer generation reads the number of key and value heads; the older has one or all.
fn kv_heads(config: &Config, grouped: bool, (heads_key, heads): (&str, usize)) -> Result<usize, SpecError> {
    if !grouped {
        return Ok(if config.flag_or("multi_query", true)? { 1 } else { heads });
    }
    let key = config.spelling(&["num_kv_heads", "n_head_kv"]);
    let kv_heads = config.count_or(key, heads, KV_HEADS)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(config.bad(key, &format!("it must divide `{heads_key}`, {heads}")));
    }
    Ok(kv_heads)
}
