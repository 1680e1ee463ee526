//! A model as a Hugging Face `config.json`, and whether one describes the model of a plan.

use super::names::Family;
use super::position_limit::{self, PositionLimit};
use crate::error::CheckpointError;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::model::{Activation, BlockRun, Mlp, Model, Norm, Position};

/// ε of the norms of a model that does not say it.
const EPSILON: f64 = 1e-5;
/// θ of rotary positions of a model that does not say it.
const ROTARY_BASE: f64 = 10_000.0;

/// The `config.json` of a model with what is stated of its positions; `None` if it is of no family of Hugging Face's that the
/// executor writes.
pub(crate) fn config(model: &Model, limit: Option<&PositionLimit>) -> Option<String> {
    let [run] = model.blocks.as_slice() else { return None };
    let mut written = keys(model, run);
    if let (Some(limit), Position::Rotary) = (limit, model.embedding.position) {
        written[position_limit::KEY] = limit.positions.into();
    }
    let text = serde_json::to_string_pretty(&written).expect("a configuration is JSON") + "\n";
    let read = from_hugging_face(&text, &model.name).ok()?;
    let norm = if Family::of(model) == Family::Gpt2 { Norm::LayerNorm } else { Norm::RmsNorm };
    (difference(&read, model).is_none() && model.final_norm == Some(norm)).then_some(text)
}

/// The keys that say of which sizes a model of some equal blocks is.
fn keys(model: &Model, run: &BlockRun) -> Value {
    let attention = &run.block.attention;
    let rates = model.drops_out();
    let mlp = match &run.block.mlp {
        Mlp::Dense(mlp) => mlp,
        Mlp::Experts(experts) => &experts.expert,
    };
    match (&run.block.mlp, model.embedding.position) {
        (Mlp::Dense(_), Position::Learned(positions)) => json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_embd": model.hidden,
            "n_head": attention.heads,
            "n_layer": run.count,
            "n_positions": positions,
            "n_inner": mlp.width,
            "vocab_size": model.vocab,
            "activation_function": if mlp.activation == Activation::Gelu { "gelu_new" } else { "relu" },
            "layer_norm_epsilon": model.norm_epsilon.unwrap_or(EPSILON),
            "resid_pdrop": rates.residual,
            "embd_pdrop": rates.embedding,
            "attn_pdrop": rates.attention,
            "tie_word_embeddings": model.head.tied,
            "torch_dtype": "float32",
        }),
        (Mlp::Experts(experts), _) => json!({
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "hidden_size": model.hidden,
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "num_hidden_layers": run.count,
            "intermediate_size": mlp.width,
            "num_local_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "vocab_size": model.vocab,
            "hidden_act": if mlp.activation == Activation::Silu { "silu" } else { "relu" },
            "attention_dropout": rates.attention,
            "rms_norm_eps": model.norm_epsilon.unwrap_or(EPSILON),
            "rope_theta": attention.rotary_base.unwrap_or(ROTARY_BASE),
            "sliding_window": null,
            "tie_word_embeddings": model.head.tied,
            "torch_dtype": "float32",
        }),
        _ => json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": model.hidden,
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "num_hidden_layers": run.count,
            "intermediate_size": mlp.width,
            "vocab_size": model.vocab,
            "hidden_act": if mlp.activation == Activation::Silu { "silu" } else { "relu" },
            "attention_bias": attention.qkv_bias,
            "attention_dropout": rates.attention,
            "mlp_bias": mlp.bias,
            "rms_norm_eps": model.norm_epsilon.unwrap_or(EPSILON),
            "rope_theta": attention.rotary_base.unwrap_or(ROTARY_BASE),
            "tie_word_embeddings": model.head.tied,
            "torch_dtype": "float32",
        }),
    }
}

/// Checks that the `config.json` of a folder, if it has one, describes the plan's model. Returns what it states of positions.
pub(crate) fn check(folder: &Path, model: &Model) -> Result<Option<PositionLimit>, CheckpointError> {
    let path = folder.join("config.json");
    if !path.exists() {
        return Ok(None);
    }
    let origin = path.display().to_string();
    let text = fs::read_to_string(&path).map_err(|error| CheckpointError::read(&path, &error))?;
    let read = from_hugging_face(&text, &origin).map_err(|error| CheckpointError::damaged(&path, error))?;
    let differs = |key: &str, value: String, allowed: String| {
        Err(CheckpointError::Differs { path: origin.clone(), key: key.into(), value, allowed })
    };
    if let Some((key, found, expected)) = difference(&read, model) {
        return differs(&key, found, format!("the plan's model has {expected} there"));
    }
    let config: Value =
        serde_json::from_str(&text).map_err(|error| CheckpointError::damaged(&path, error))?;
    match untrained(&config, model) {
        Some((key, value, allowed)) => differs(key, value, allowed.into()),
        None => Ok(PositionLimit::of(&config, &origin)),
    }
}

/// The first key of a model's configuration by which the executor computes something else: the key, its value and why. A
/// `Model` has none of them.
pub fn untrained(config: &Value, model: &Model) -> Option<(&'static str, String, &'static str)> {
    if Family::of(model) == Family::Llama {
        let scaling = config.get("rope_scaling").filter(|scaling| !scaling.is_null());
        let scaling = scaling.map(|scaling| ("rope_scaling", scaling.to_string(), NO_SCALING));
        let kind = config.get("rope_parameters").and_then(|table| table.get("rope_type"));
        let kind = kind.and_then(Value::as_str).filter(|kind| *kind != "default");
        return scaling.or(kind.map(|kind| ("rope_parameters.rope_type", kind.into(), NO_SCALING)));
    }
    let layers = "scale_attn_by_inverse_layer_idx";
    match config.get("activation_function").and_then(Value::as_str) {
        Some("gelu") => {
            Some(("activation_function", "gelu".into(), "the executor computes `gelu_new`, by tanh"))
        }
        _ if config.get(layers).and_then(Value::as_bool) == Some(true) => {
            Some((layers, "true".into(), "the executor divides scores by the width of a head alone"))
        }
        _ => None,
    }
}

const NO_SCALING: &str = "the executor does not scale positions";

/// The first part in which two models differ, but for name and dropout, with what it is in both.
fn difference(read: &Model, model: &Model) -> Option<(String, String, String)> {
    let value = |model: &Model| {
        let norm_epsilon = Some(model.norm_epsilon.unwrap_or(EPSILON));
        let named = Model { name: String::new(), norm_epsilon, ..model.clone() };
        let mut plain = Model { dropout: false, dropout_rates: None, ..named };
        for attention in plain.blocks.iter_mut().map(|run| &mut run.block.attention) {
            let base = attention.rotary_base.unwrap_or(ROTARY_BASE);
            attention.rotary_base = attention.rotary.then_some(base);
        }
        serde_json::to_value(plain).expect("a model is data")
    };
    first_difference("model", &value(read), &value(model))
}

fn first_difference(key: &str, read: &Value, expected: &Value) -> Option<(String, String, String)> {
    match (read, expected) {
        (Value::Object(read), Value::Object(expected)) => {
            let keys = read.keys().chain(expected.keys());
            let null = Value::Null;
            keys.into_iter().find_map(|name| {
                let of = |map: &serde_json::Map<String, Value>| map.get(name).unwrap_or(&null).clone();
                first_difference(&format!("{key}.{name}"), &of(read), &of(expected))
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            one.iter().zip(other).find_map(|(read, expected)| first_difference(key, read, expected))
        }
        _ if read == expected => None,
        _ => Some((key.into(), read.to_string(), expected.to_string())),
    }
}
