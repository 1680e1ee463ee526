//! T5 (arXiv 1910.10683): an encoder, then a decoder with cross-attention; positions as biases per head.

use super::config::{Config, activation, known_activations};
use super::parts::{embedding, head, multi_head};
use crate::error::SpecError;
use crate::limits::{BUCKETS, HEAD_DIM, HEADS, HIDDEN, INNER, LAYERS, VOCAB};
use crate::model::{Activation, Attention, Block, BlockRun, FeedForward, Mask, Mlp, Model, Norm, Position};

/// Reads a `t5` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let layers = config.count("num_layers", LAYERS)?;
    let heads = config.count("num_heads", HEADS)?;
    let decoder_attention = multi_head(heads, config.count("d_kv", HEAD_DIM)?, false);
    let full_attention = Attention { mask: Mask::Full, ..decoder_attention.clone() };
    let encoder = Block::sequential(Norm::RmsNorm, full_attention.clone(), Mlp::Dense(mlp(config)?));
    let decoder = Block {
        norms: 3,
        attention: decoder_attention,
        cross_attention: Some(full_attention),
        ..encoder.clone()
    };
    let buckets = config.count_or("relative_attention_num_buckets", 32, BUCKETS)?;
    Ok(Model {
        name: String::new(),
        hidden: config.count("d_model", HIDDEN)?,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&[("dropout_rate", 0.1)])?,
        embedding: embedding(Position::RelativeBias { buckets, heads, stacks: 2 }),
        final_norm: Some(Norm::RmsNorm),
        norm_epsilon: None,
        dropout_rates: None,
        head: head(config, true)?,
        blocks: vec![
            BlockRun { count: layers, block: encoder },
            BlockRun { count: config.count_or("num_decoder_layers", layers, LAYERS)?, block: decoder },
        ],
    })
}

/// `feed_forward_proj` is the name of an activation, with `gated-` before it where a third matrix gates the layer.
fn mlp(config: &Config) -> Result<FeedForward, SpecError> {
    let width = config.count("d_ff", INNER)?;
    let kind = config.optional_text("feed_forward_proj", "the name of an activation")?;
    let Some(kind) = kind else {
        return Ok(FeedForward { width, gated: false, activation: Activation::Relu, bias: false });
    };
    let (gated, name) = kind.strip_prefix("gated-").map_or((false, kind), |name| (true, name));
    let activation = activation(name).ok_or_else(|| {
        config.bad("feed_forward_proj", &format!("{}, each also after `gated-`", known_activations()))
    })?;
    Ok(FeedForward { width, gated, activation, bias: false })
}
