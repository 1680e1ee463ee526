//! What a model's configuration says beyond its `Model`: facts that change what is trained, but neither sizes nor times.
//!
//! A plan has no place for them. A plan's model that equals one of the catalog has those of its entry; for others a
//! `config.json` says them.

use serde_json::{Map, Value};
use trainwright_spec::catalog;
use trainwright_spec::error::SpecError;
use trainwright_spec::model::{Model, preset};

/// Facts of a model that a plan has no place for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Details {
    /// How the frequencies of rotary positions are scaled.
    pub rope_scaling: RopeScaling,
    /// c of c·tanh(x / c) over attention's scores.
    pub attention_softcap: Option<f64>,
    /// The same over the head's outputs.
    pub final_softcap: Option<f64>,
    /// Queries are divided by the square root of this instead of their heads' width.
    pub query_scalar: Option<f64>,
    /// Whether embeddings are multiplied by the square root of their width.
    pub scaled_embedding: bool,
    /// Whether norms store their gain less one.
    pub zero_centered_norms: bool,
    /// Modules that predict further tokens.
    pub further_predictions: usize,
    /// How the router weighs the experts of a token; `None` without experts.
    pub router: Option<Router>,
    /// A learned score in each head's softmax that no key has.
    pub attention_sinks: bool,
    /// Gated units of gpt-oss, x·σ(1.702 x)·(y + 1), with x and y clamped to this.
    pub clamped_gate: Option<f64>,
    /// What else its blocks do, in words.
    pub peculiar: Vec<&'static str>,
}

/// How the frequencies of rotary positions are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RopeScaling {
    /// They are not.
    #[default]
    None,
    /// As LLaMA 3.1 does: low frequencies by `factor`, high ones not at all.
    Llama {
        /// The factor.
        factor: f64,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn(Yarn),
    /// All by `factor`.
    Linear {
        /// The factor.
        factor: f64,
    },
}

/// The numbers of YaRN (arXiv 2309.00071), as Hugging Face names them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// How many times longer sequences are.
    pub factor: f64,
    /// Positions before.
    pub original: usize,
    /// Rotations over these positions above which a frequency stays.
    pub beta_fast: f64,
    /// Rotations below which it is divided by `factor`.
    pub beta_slow: f64,
    /// Of attention's temperature.
    pub mscale: f64,
    /// Of attention's temperature over all dims.
    pub mscale_all_dim: f64,
}

/// How a router weighs the experts of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Router {
    /// Scores by sigmoid instead of softmax.
    pub sigmoid: bool,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalised: bool,
    /// A factor of the weights.
    pub scaling: f64,
}

/// That of gpt-oss: the default of transformers' GptOssConfig.
pub(crate) const GPT_OSS_SCALING: RopeScaling = RopeScaling::Yarn(Yarn { factor: 32.0, ..Yarn::usual() });

/// Queries and keys with one norm for all heads together, where exported models have one for each head.
const NORM_OF_ALL_HEADS: &str = "norm of queries or keys over all heads";

impl Details {
    /// Those of the catalog's model that equals this one; `None` if there is none.
    pub fn of_catalog(model: &Model) -> Option<Self> {
        let known = preset::preset(&model.name).ok()?;
        if known != (Model { name: known.name.clone(), ..model.clone() }) {
            return None;
        }
        let text = catalog::text("model", &known.name).ok()?;
        let table: Map<String, Value> = toml::from_str(text).ok()?;
        Some(Self::of_keys(table.get("config")?.as_object()?))
    }

    /// Those of a Hugging Face `config.json`.
    ///
    /// # Errors
    /// `Syntax` for text that is no JSON object.
    pub fn of_config(text: &str, origin: &str) -> Result<Self, SpecError> {
        let syntax = |message: String| SpecError::Syntax { origin: origin.into(), message };
        let table: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| syntax(error.to_string()))?;
        Ok(Self::of_keys(table.get("text_config").and_then(Value::as_object).unwrap_or(&table)))
    }

    /// Missing keys have the values that Hugging Face's transformers 5 gives them.
    fn of_keys(keys: &Map<String, Value>) -> Self {
        let family = keys.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| keys.get(key).and_then(Value::as_f64);
        let flag = |key: &str| keys.get(key).and_then(Value::as_bool);
        let gemma = family.starts_with("gemma");
        let softcap = |key: &str, of_gemma_2: f64| match (keys.get(key), family) {
            (Some(value), _) => value.as_f64(),
            (None, "gemma2") => Some(of_gemma_2),
            (None, _) => None,
        };
        Self {
            rope_scaling: rope_scaling(keys, family),
            attention_softcap: softcap("attn_logit_softcapping", 50.0),
            final_softcap: softcap("final_logit_softcapping", 30.0),
            query_scalar: number("query_pre_attn_scalar")
                .or(["gemma2", "gemma3_text"].contains(&family).then_some(256.0)),
            scaled_embedding: gemma,
            zero_centered_norms: gemma || family == "nemotron",
            further_predictions: ["num_nextn_predict_layers", "num_mtp_modules"]
                .iter()
                .find_map(|key| number(key))
                .unwrap_or(0.0) as usize,
            router: router(family, flag("norm_topk_prob"), number("routed_scaling_factor")),
            attention_sinks: family == "gpt_oss",
            clamped_gate: (family == "gpt_oss").then(|| number("swiglu_limit").unwrap_or(7.0)),
            peculiar: match family {
                "olmo2" => vec!["norms behind attention and feed-forward layer", NORM_OF_ALL_HEADS],
                "minimax_m2" => vec![NORM_OF_ALL_HEADS],
                "grok-1" => vec!["scores in soft limits", "scaled embeddings and outputs"],
                "llama4_text" => {
                    vec!["attention in chunks", "blocks without rotary positions", "scaled inputs of experts"]
                }
                _ => Vec::new(),
            },
        }
    }
}

fn router(family: &str, normalised: Option<bool>, scaling: Option<f64>) -> Option<Router> {
    let (sigmoid, usual, scaled) = match family {
        "deepseek_v2" => (false, false, 1.0),
        "deepseek_v3" => (true, true, 2.5),
        "minimax_m2" => (true, true, 1.0),
        "mixtral" | "gpt_oss" => (false, true, 1.0),
        "qwen2_moe" | "qwen3_moe" => (false, false, 1.0),
        _ => return None,
    };
    Some(Router { sigmoid, normalised: normalised.unwrap_or(usual), scaling: scaling.unwrap_or(scaled) })
}

fn rope_scaling(keys: &Map<String, Value>, family: &str) -> RopeScaling {
    let table = ["rope_scaling", "rope_parameters"].iter().find_map(|key| keys.get(*key)?.as_object());
    let Some(table) = table else {
        return match family {
            "gpt_oss" => GPT_OSS_SCALING,
            _ => RopeScaling::None,
        };
    };
    let number = |key: &str, usual: f64| table.get(key).and_then(Value::as_f64).unwrap_or(usual);
    let factor = number("factor", 1.0);
    match ["rope_type", "type"].iter().find_map(|key| table.get(*key)?.as_str()) {
        Some("llama3") => RopeScaling::Llama { factor },
        Some("linear") => RopeScaling::Linear { factor },
        Some("yarn" | "deepseek_yarn") => {
            let usual = Yarn::usual();
            RopeScaling::Yarn(Yarn {
                factor,
                original: number("original_max_position_embeddings", usual.original as f64) as usize,
                beta_fast: number("beta_fast", usual.beta_fast),
                beta_slow: number("beta_slow", usual.beta_slow),
                mscale: number("mscale", usual.mscale),
                mscale_all_dim: number("mscale_all_dim", usual.mscale_all_dim),
            })
        }
        _ => RopeScaling::None,
    }
}

impl Yarn {
    const fn usual() -> Self {
        Self {
            factor: 1.0,
            original: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Details {
        Details::of_catalog(&preset::preset(name).unwrap()).unwrap()
    }

    /// The configurations of their publishers.
    #[test]
    fn models_of_the_catalog_have_details() {
        assert_eq!(of("llama-3-8b"), Details::default());
        assert_eq!(of("llama-3-405b").rope_scaling, RopeScaling::Llama { factor: 8.0 });
        assert_eq!(of("llama-3.2-1b").rope_scaling, RopeScaling::Llama { factor: 32.0 });
        let gemma = of("gemma-2-27b");
        assert_eq!((gemma.attention_softcap, gemma.final_softcap), (Some(50.0), Some(30.0)));
        assert_eq!((gemma.query_scalar, gemma.scaled_embedding), (Some(144.0), true));
        let third = of("deepseek-v3");
        assert_eq!(third.further_predictions, 1);
        assert_eq!(third.router, Some(Router { sigmoid: true, normalised: true, scaling: 2.5 }));
        let yarn = Yarn { factor: 40.0, mscale: 1.0, mscale_all_dim: 1.0, ..Yarn::usual() };
        assert_eq!(third.rope_scaling, RopeScaling::Yarn(yarn));
        assert_eq!(
            of("deepseek-v2").router,
            Some(Router { sigmoid: false, normalised: false, scaling: 16.0 })
        );
        assert!(of("qwen3-235b-a22b").router.unwrap().normalised);
        assert_eq!(of("gpt-oss-20b").clamped_gate, Some(7.0));
    }

    /// A model that differs from the catalog's of its name has details of its own.
    #[test]
    fn another_model_of_the_name_is_not_the_catalogs() {
        let mut model = preset::preset("llama-3-405b").unwrap();
        model.hidden *= 2;
        assert_eq!(Details::of_catalog(&model), None);
        let text = r#"{"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 4.0}}"#;
        assert_eq!(Details::of_config(text, "x").unwrap().rope_scaling, RopeScaling::Llama { factor: 4.0 });
        assert!(Details::of_config("[]", "x").is_err());
    }
}
