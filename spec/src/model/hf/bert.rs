//! BERT (arXiv 1810.04805): an encoder with its norms after each part.
//!
//! `architectures` names the head: `BertModel` a pooler, `BertForPreTraining` pooler and masked-language
//! head, anything else the masked-language head, since that is what pretraining trains. The head of two outputs for
//! next-sentence prediction is left out.

use super::config::Config;
use super::parts::{head, head_dim, multi_head, repeat};
use crate::error::SpecError;
use crate::limits::{HEADS, HIDDEN, INNER, LAYERS, POSITIONS, TOKEN_TYPES, VOCAB};
use crate::model::{
    Activation, Attention, Block, Embedding, FeedForward, Head, Mask, Mlp, Model, Norm, Position,
};

/// Reads a `bert` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let hidden = config.count("hidden_size", HIDDEN)?;
    let heads = config.count("num_attention_heads", HEADS)?;
    let head_dim = head_dim(config, ("hidden_size", hidden), ("num_attention_heads", heads))?;
    let positions = config.count_or("max_position_embeddings", 512, POSITIONS)?;
    let mlp = FeedForward {
        width: config.count("intermediate_size", INNER)?,
        gated: false,
        activation: config.activation_or("hidden_act", Activation::Gelu)?,
        bias: true,
    };
    let block = Block::sequential(
        Norm::LayerNorm,
        Attention { mask: Mask::Full, ..multi_head(heads, head_dim, true) },
        Mlp::Dense(mlp),
    );
    let dropouts = [("hidden_dropout_prob", 0.1), ("attention_probs_dropout_prob", 0.1)];
    Ok(Model {
        name: String::new(),
        hidden,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&dropouts)?,
        embedding: Embedding {
            position: Position::Learned(positions),
            width: None,
            token_types: config.count_or("type_vocab_size", 2, TOKEN_TYPES.or_zero())?,
            norm: Some(Norm::LayerNorm),
        },
        final_norm: None,
        norm_epsilon: None,
        dropout_rates: None,
        head: top(config)?,
        blocks: repeat(config.count("num_hidden_layers", LAYERS)?, block),
    })
}

fn top(config: &Config) -> Result<Head, SpecError> {
    let architectures = config.optional_list("architectures", "a list of class names")?.unwrap_or_default();
    let has = |name: &str| architectures.iter().any(|architecture| architecture.as_str() == Some(name));
    let masked_language = !has("BertModel");
    let pooler = has("BertModel") || has("BertForPreTraining");
    Ok(Head { bias: masked_language, transform: masked_language, pooler, ..head(config, true)? })
}
