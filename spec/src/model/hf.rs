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
mod t5;

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
    let syntax = |message: String| SpecError::Syntax { origin: origin.into(), message };
    match serde_json::from_str(text) {
        Ok(Value::Object(keys)) => from_keys(&keys, origin),
        Ok(other) => {
            Err(syntax(format!("a JSON object should stand here, this is {}", config::kind(&other))))
        }
        Err(error) => Err(syntax(error.to_string())),
    }
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
    match nearest(model_type, families()).as_slice() {
        [] => format!("known are {known}"),
        close => format!("nearest are {}; known are {known}", close.join(", ")),
    }
}
