//! A plain decoder whose keys are known by their meaning: for models of no family above.
//!
//! Its blocks are as LLaMA's, each property of which a key may change: grouped heads, windows, biases, norms of queries and keys,
//! layer norms, no gate, experts with or without shared ones. Positions are rotary.

use super::config::Config;
use super::parts::{Decoder, Missing, gated_mlp, head, repeat, routed};
use crate::error::SpecError;
use crate::limits::{INNER, WINDOW};
use crate::model::{Attention, Block, Experts, FeedForward, Mask, Mlp, Model, Norm};

/// The family's name in `model_type`.
pub const NAME: &str = "decoder";

/// Keys that mean the same, by the one that is read.
const MEANINGS: &[(&str, &[&str])] = &[
    ("hidden_size", &["d_model", "n_embd", "dim", "model_dim", "embed_dim"]),
    ("num_hidden_layers", &["n_layers", "n_layer", "num_layers", "num_blocks", "depth"]),
    ("num_attention_heads", &["n_heads", "n_head", "num_heads"]),
    ("num_key_value_heads", &["n_kv_heads", "n_kv_head", "num_kv_heads", "multi_query_group_num"]),
    ("head_dim", &["d_head", "kv_channels", "attention_head_dim"]),
    ("intermediate_size", &["d_ff", "ffn_dim", "n_inner", "ffn_hidden_size", "mlp_hidden_size", "inner_dim"]),
    ("vocab_size", &["n_vocab", "padded_vocab_size", "embedding_vocab_size"]),
    ("hidden_act", &["hidden_activation", "activation_function", "activation"]),
    ("tie_word_embeddings", &["weight_tying", "tie_embeddings", "share_embeddings"]),
    ("qkv_bias", &["add_qkv_bias"]),
    ("mlp_bias", &["use_bias", "add_bias_linear"]),
    ("qk_norm", &["use_qk_norm", "qk_layernorm"]),
    ("num_experts", &["n_routed_experts", "num_local_experts", "moe_num_experts", "n_experts"]),
    ("num_experts_per_tok", &["moe_top_k", "top_k_experts", "num_experts_per_token", "n_experts_per_tok"]),
    ("moe_intermediate_size", &["expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_dim"]),
    ("shared_expert_intermediate_size", &["moe_shared_expert_intermediate_size"]),
    ("sliding_window", &["window_size", "attention_window"]),
];

/// The keys of a file with each in the spelling that is read.
///
/// # Errors
/// `BadValue` for two keys of one meaning with different values.
pub fn spelled(config: &Config) -> Result<serde_json::Map<String, serde_json::Value>, SpecError> {
    let mut keys = config.keys.clone();
    for (key, others) in MEANINGS {
        if keys.get(*key).is_some_and(|value| !value.is_null()) {
            continue;
        }
        let there: Vec<&str> = others
            .iter()
            .copied()
            .filter(|other| config.keys.get(*other).is_some_and(|value| !value.is_null()))
            .collect();
        let Some(first) = there.first() else { continue };
        if let Some(second) = there.iter().find(|other| config.keys[**other] != config.keys[*first]) {
            let allowed = format!("`{first}` is another, and both may be `{key}`: map one of them");
            return Err(config.bad(second, &allowed));
        }
        keys.insert((*key).into(), config.keys[*first].clone());
    }
    Ok(keys)
}

/// Reads a configuration in the spelling of `spelled`.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let decoder = Decoder::read(config, Missing::default())?;
    let bias = config.flag_or("attention_bias", false)?;
    let attention = Attention {
        qkv_bias: config.flag_or("qkv_bias", bias)?,
        output_bias: config.flag_or("attention_output_bias", bias)?,
        qk_norm: config.flag_or("qk_norm", false)?,
        mask: config.optional_count("sliding_window", WINDOW)?.map_or(Mask::Causal, Mask::Window),
        ..decoder.attention.clone()
    };
    let layers_norms = config.flag_or("layer_norm", false)?;
    let norm = if layers_norms { Norm::LayerNorm } else { Norm::RmsNorm };
    let block = Block::sequential(norm, attention, mlp(config)?);
    let mut model = decoder.model(config, repeat(decoder.layers, block), head(config, false)?)?;
    model.final_norm = Some(norm);
    Ok(model)
}

fn mlp(config: &Config) -> Result<Mlp, SpecError> {
    let layer = |key: &str| -> Result<FeedForward, SpecError> {
        let (gated, bias) = (config.flag_or("gated", true)?, config.flag_or("mlp_bias", false)?);
        Ok(FeedForward { gated, bias, ..gated_mlp(config, key)? })
    };
    if config.keys.get("num_experts").is_none_or(|count| count.is_null()) {
        return Ok(Mlp::Dense(layer("intermediate_size")?));
    }
    let width = config.spelling(&["moe_intermediate_size", "intermediate_size"]);
    let shared = config.count_or("shared_expert_intermediate_size", 0, INNER.or_zero())?;
    let expert = layer(width)?;
    let shared = (shared > 0).then(|| FeedForward { width: shared, ..expert.clone() });
    Ok(Mlp::Experts(Experts { shared, ..routed(config, "num_experts", expert)? }))
}
