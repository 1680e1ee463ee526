//! What the headers of a model's safetensors files say: the shape of each weight.

use super::config::Config;
use crate::error::SpecError;
use crate::model::Model;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The shapes of a model's weights by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shapes {
    shapes: BTreeMap<String, Vec<u64>>,
    /// Whether some weights are several numbers in one integer, so that shapes do not count them.
    packed: bool,
}

/// Ends of names of tensors that no training changes: positions, masks, scales of quantised weights.
const NO_WEIGHTS: [&str; 7] =
    ["inv_freq", "masked_bias", "attn.bias", "scale_inv", ".scale", "input_scale", "position_ids"];

/// How far the count may be from that of `config.json`: padded vocabularies.
const SLACK: f64 = 1e-3;

impl Shapes {
    /// Adds the tensors of one file's header, a JSON object of the names with `dtype` and `shape` of each.
    ///
    /// # Errors
    /// `Syntax` for anything else.
    pub fn add_header(&mut self, header: &[u8], origin: &str) -> Result<(), SpecError> {
        let syntax = |message: String| SpecError::Syntax { origin: origin.into(), message };
        let tensors: Map<String, Value> =
            serde_json::from_slice(header).map_err(|error| syntax(error.to_string()))?;
        for (name, tensor) in tensors.into_iter().filter(|(name, _)| name != "__metadata__") {
            let dims = tensor.get("shape").and_then(Value::as_array);
            let dims: Option<Vec<u64>> = dims.and_then(|dims| dims.iter().map(Value::as_u64).collect());
            let dims = dims.ok_or_else(|| syntax(format!("`{name}` has no shape")))?;
            let integer =
                tensor.get("dtype").and_then(Value::as_str).is_some_and(|kind| kind.starts_with(['I', 'U']));
            if NO_WEIGHTS.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            self.packed |= integer;
            self.shapes.insert(name, dims);
        }
        Ok(())
    }

    /// Elements of all weights; `u64::MAX` if there are more.
    pub fn parameters(&self) -> u64 {
        let elements = |dims: &Vec<u64>| dims.iter().fold(1u64, |product, dim| product.saturating_mul(*dim));
        self.shapes.values().map(elements).fold(0, u64::saturating_add)
    }

    /// Whether the model has as many parameters.
    ///
    /// # Errors
    /// `BadValue` with both numbers. Packed weights are not counted.
    pub(super) fn check(&self, model: &Model, config: &Config) -> Result<(), SpecError> {
        let (said, there) = (model.parameters(), self.parameters());
        // A tied output layer may be written too.
        let tied = if model.head.tied { model.vocab as u64 * model.hidden as u64 } else { 0 };
        let near = |count: u64| (count as f64 / there as f64 - 1.0).abs() <= SLACK;
        if self.packed || near(said) || near(said + tied) {
            return Ok(());
        }
        Err(config.bad(
            "model_type",
            &format!("read so it has {said} parameters, and the weights beside the file are {there}"),
        ))
    }

    /// The keys of a plain decoder that the shapes say.
    pub(super) fn keys(&self) -> Map<String, Value> {
        let mut keys = Map::new();
        let has =
            |parts: &[&str]| self.shapes.keys().any(|name| parts.iter().any(|part| name.contains(part)));
        let of = |parts: &[&str]| -> Option<&Vec<u64>> {
            let named = |name: &&String| {
                let stem = name.strip_suffix(".weight");
                stem.is_some_and(|stem| parts.iter().any(|part| stem.ends_with(part)))
            };
            self.shapes.keys().find(named).map(|name| &self.shapes[name])
        };
        if let Some([vocab, hidden]) = of(&EMBEDDINGS).map(Vec::as_slice) {
            keys.insert("vocab_size".into(), (*vocab).into());
            keys.insert("hidden_size".into(), (*hidden).into());
        }
        let layers = self.layers();
        if layers > 0 {
            keys.insert("num_hidden_layers".into(), layers.into());
        }
        let experts = has(&[".experts."]);
        if let (Some([_, width]), false) = (of(&DOWN).map(Vec::as_slice), experts) {
            keys.insert("intermediate_size".into(), (*width).into());
        }
        keys.insert("gated".into(), has(&GATES).into());
        keys.insert("qkv_bias".into(), has(&["k_proj.bias", "wk.bias", "key.bias"]).into());
        keys.insert("attention_output_bias".into(), has(&["o_proj.bias", "wo.bias"]).into());
        keys.insert("mlp_bias".into(), has(&["down_proj.bias", "w2.bias", "fc2.bias"]).into());
        keys.insert("qk_norm".into(), has(&["q_norm.", "query_norm."]).into());
        keys.insert("tie_word_embeddings".into(), (!has(&OUTPUTS)).into());
        keys
    }

    /// Distinct numbers of blocks in names: the first number of each.
    fn layers(&self) -> usize {
        let number = |name: &String| name.split('.').find_map(|part| part.parse::<u32>().ok());
        self.shapes.keys().filter_map(number).collect::<BTreeSet<u32>>().len()
    }
}

/// Ends of the names of token embeddings, and parts of the names of other weights, as models call them.
const EMBEDDINGS: [&str; 5] = ["embed_tokens", "wte", "tok_embeddings", "word_embeddings", "embed_in"];
const DOWN: [&str; 3] = ["down_proj", "w2", "fc2"];
const GATES: [&str; 3] = ["gate_proj.", "gate_up_proj.", ".w3."];
const OUTPUTS: [&str; 3] = ["lm_head.", "output.weight", "embed_out."];
