//! Reads a Hugging Face `config.json` into a `Model`.
//!
//! One file per family knows its keys and the values that stand for missing ones; the table below is all that ties
//! them together. Keys that do not change weights or products are ignored: configurations are full of them.
//! Sizes that every real file states have no default; what stands for other missing keys is what the `transformers`
//! library, version 5, takes.

mod bamba;
mod bert;
mod bloom;
mod config;
mod deci;
mod decoder;
mod deepseek;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod grok;
mod llama;
mod llama4;
mod minimax;
mod mixtral;
mod nemotron;
mod olmo2;
mod opt;
mod palm;
mod parts;
mod phi3;
mod qwen;
mod qwen_hybrid;
mod shapes;
mod t5;

pub use shapes::Shapes;

use super::Model;
use crate::catalog::nearest;
use crate::error::SpecError;
use crate::limits::PARAMETERS;
use config::Config;
use serde_json::{Map, Value};

/// A family of models: the spelling of its `model_type` and its reader.
struct Family {
    model_type: &'static str,
    read: fn(&Config) -> Result<Model, SpecError>,
}

const FAMILIES: &[Family] = &[
    Family { model_type: "bamba", read: bamba::read },
    Family { model_type: "bert", read: bert::read },
    Family { model_type: "bloom", read: bloom::read },
    Family { model_type: "deci", read: deci::read },
    Family { model_type: decoder::NAME, read: decoder::read },
    Family { model_type: "deepseek_v2", read: deepseek::read },
    Family { model_type: "deepseek_v3", read: deepseek::read },
    Family { model_type: "deepseek_v32", read: deepseek::read },
    Family { model_type: "falcon", read: falcon::read },
    // The `model_type` of falcon-7b and falcon-40b before the family had a name.
    Family { model_type: "RefinedWeb", read: falcon::read_refined_web },
    Family { model_type: "RefinedWebModel", read: falcon::read },
    Family { model_type: "gemma", read: gemma::read_first },
    Family { model_type: "gemma2", read: gemma::read_second },
    Family { model_type: "gemma3_text", read: gemma::read_third },
    Family { model_type: "glm_moe_dsa", read: deepseek::read },
    Family { model_type: "gpt2", read: gpt2::read },
    Family { model_type: "gpt_neox", read: gpt_neox::read },
    Family { model_type: "gpt_oss", read: gpt_oss::read },
    Family { model_type: "gptj", read: gptj::read },
    Family { model_type: "grok-1", read: grok::read },
    Family { model_type: "llama", read: llama::read },
    Family { model_type: "llama4_text", read: llama4::read },
    Family { model_type: "minimax_m2", read: minimax::read },
    Family { model_type: "mistral", read: llama::read_mistral },
    Family { model_type: "mixtral", read: mixtral::read },
    Family { model_type: "nemotron", read: nemotron::read },
    Family { model_type: "olmo2", read: olmo2::read },
    Family { model_type: "opt", read: opt::read },
    Family { model_type: "palm", read: palm::read },
    Family { model_type: "phi3", read: phi3::read },
    Family { model_type: "qwen2", read: qwen::read_second },
    Family { model_type: "qwen2_moe", read: qwen::read_second_experts },
    Family { model_type: "qwen3", read: qwen::read_third },
    Family { model_type: "qwen3_5_moe_text", read: qwen_hybrid::read_experts },
    Family { model_type: "qwen3_5_text", read: qwen_hybrid::read_dense },
    Family { model_type: "qwen3_moe", read: qwen::read_third_experts },
    Family { model_type: "qwen3_next", read: qwen_hybrid::read_experts },
    Family { model_type: "t5", read: t5::read },
];

/// The values of `model_type` that can be read.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type)
}

/// The model that a Hugging Face `config.json` describes, named after `origin`, its file.
///
/// # Errors
/// `Syntax` for text that is not a JSON object, with line and column; `MissingKey` and `BadValue` name the key and
/// what should stand there, for `model_type` all known families and the nearest of them.
pub fn from_hugging_face(text: &str, origin: &str) -> Result<Model, SpecError> {
    from_files(text, origin, &[], None)
}

/// The same, with the keys of `map` in the place of others: of each pair the key that is read and the file's key for it, or
/// a number, `true` or `false`; of `model_type` the family itself. A `model_type` of no family is a plain decoder if anything is mapped. `shapes` are of the weights
/// beside the file: a plain decoder has what they say where the file is silent, and any model as many parameters.
///
/// # Errors
/// As `from_hugging_face`; `BadValue` for a key that the file does not have, and for weights that are not those of the file.
pub fn from_files(
    text: &str,
    origin: &str,
    map: &[(String, String)],
    shapes: Option<&Shapes>,
) -> Result<Model, SpecError> {
    let syntax = |message: String| SpecError::Syntax { origin: origin.into(), message };
    let mut keys = match serde_json::from_str(text) {
        Ok(Value::Object(keys)) => keys,
        Ok(other) => {
            return Err(syntax(format!("a JSON object should stand here, this is {}", config::kind(&other))));
        }
        Err(error) => return Err(syntax(error.to_string())),
    };
    // A model of several kinds of input keeps its language model's keys in a separate table.
    let known = |keys: &Map<String, Value>| {
        let family = keys.get("model_type").and_then(Value::as_str);
        family.is_some_and(|family| families().any(|known| known == family))
    };
    if let (false, Some(Value::Object(text))) = (known(&keys), keys.get("text_config")) {
        keys = text.clone();
    }
    mapped(&mut keys, map, origin)?;
    if !map.is_empty() && !known(&keys) && map.iter().all(|(key, _)| key != "model_type") {
        keys.insert("model_type".into(), decoder::NAME.into());
    }
    if keys.get("model_type").is_some_and(|family| family == decoder::NAME) {
        keys = decoder::spelled(&Config { keys: &keys, origin })?;
        for (key, value) in shapes.map(Shapes::keys).unwrap_or_default() {
            let missing = keys.get(&key).is_none_or(Value::is_null);
            if missing {
                keys.insert(key, value);
            }
        }
    }
    let model = from_keys(&keys, origin)?;
    if let Some(shapes) = shapes {
        shapes.check(&model, &Config { keys: &keys, origin })?;
    }
    Ok(model)
}

/// The number or truth value that a text is.
fn literal(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().filter(|value: &Value| value.is_number() || value.is_boolean())
}

/// Puts the values of mapped keys in their places.
fn mapped(keys: &mut Map<String, Value>, map: &[(String, String)], origin: &str) -> Result<(), SpecError> {
    for (key, from) in map {
        let value = match key.as_str() {
            "model_type" => Some(Value::String(from.clone())),
            _ => keys.get(from).cloned().or_else(|| literal(from)),
        };
        let Some(value) = value else {
            let near = nearest(from, keys.keys().map(String::as_str));
            let near = if near.is_empty() {
                "none is like it".into()
            } else {
                format!("the nearest are {}", near.join(", "))
            };
            return Err(SpecError::BadValue {
                origin: origin.into(),
                key: key.clone(),
                value: format!("mapped from `{from}`"),
                allowed: format!("the file has no such key, {near}"),
            });
        };
        keys.insert(key.clone(), value);
    }
    Ok(())
}

/// Keys of ε of norms, by family.
const EPSILONS: [&str; 4] = ["rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps"];
/// Keys of θ of rotary positions, by family.
const BASES: [&str; 2] = ["rope_theta", "rotary_emb_base"];

/// The model that the keys of a `config.json` describe.
pub(super) fn from_keys(keys: &Map<String, Value>, origin: &str) -> Result<Model, SpecError> {
    let config = Config { keys, origin };
    let model_type = config.text("model_type", "the family, such as \"llama\"")?;
    match FAMILIES.iter().find(|family| family.model_type == model_type) {
        Some(family) => {
            let mut model = (family.read)(&config)?;
            model.name = origin.into();
            model.norm_epsilon = config.optional_above_zero(&EPSILONS)?;
            let base = rotary_base(&config)?;
            let blocks = model.blocks.iter_mut().map(|run| &mut run.block.attention);
            blocks.filter(|attention| attention.rotary).for_each(|attention| attention.rotary_base = base);
            let parameters = model.parameters();
            match PARAMETERS.allows(parameters) {
                true => Ok(model),
                false => Err(SpecError::BadValue {
                    origin: origin.into(),
                    key: "model_type".into(),
                    value: format!("`{model_type}` of {parameters} parameters"),
                    allowed: PARAMETERS.expected(),
                }),
            }
        }
        // A model of several kinds of input keeps its language model's keys in a separate table.
        None => match keys.get("text_config") {
            Some(Value::Object(text)) => from_keys(text, origin),
            _ => Err(config.bad("model_type", &unknown_family(model_type))),
        },
    }
}

/// θ of rotary positions, by itself or among `rope_parameters`, as Transformers 5 writes it.
fn rotary_base(config: &Config) -> Result<Option<f64>, SpecError> {
    match (config.optional_above_zero(&BASES)?, config.keys.get("rope_parameters")) {
        (None, Some(Value::Object(keys))) => {
            Config { keys, origin: config.origin }.optional_above_zero(&BASES)
        }
        (base, _) => Ok(base),
    }
}

/// Known values of `model_type`, the nearest first.
fn unknown_family(model_type: &str) -> String {
    let known = families().collect::<Vec<_>>().join(", ");
    let plain = "or a plain decoder with `--map model_type=decoder`";
    match nearest(model_type, families()).as_slice() {
        [] => format!("known are {known}, {plain}"),
        close => format!("nearest are {}; known are {known}, {plain}", close.join(", ")),
    }
}
