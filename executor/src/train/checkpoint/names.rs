//! What Hugging Face calls each parameter, and how it lies in a file.
//!
//! A model with learned positions has GPT-2's names, every other one LLaMA's, experts Mixtral's. GPT-2's matrices are stored
//! with inputs for rows (its `Conv1D`); LLaMA's stand alone where ours stand below each other: queries, keys and values, gate
//! and up, and the matrices of one expert below those of another.

use crate::train::parameters::{Layer, ParameterName, block};
use std::borrow::Cow;
use std::ops::Range;
use trainwright_spec::model::{Mlp, Model, Position};

/// A tensor of a file, and the rows of a parameter that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Its name in the file.
    pub name: String,
    /// The rows of the parameter.
    pub rows: Range<usize>,
    /// Its columns; `None` for a vector.
    pub columns: Option<usize>,
    /// Whether the file has columns for rows.
    pub transposed: bool,
}

/// The families of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// GPT-2's.
    Gpt2,
    /// LLaMA's.
    Llama,
}

impl Family {
    /// That of a model.
    pub fn of(model: &Model) -> Self {
        match model.embedding.position {
            Position::Learned(_) => Family::Gpt2,
            _ => Family::Llama,
        }
    }
}

impl Stored {
    /// The shape in the file.
    pub fn shape(&self) -> Vec<usize> {
        match (self.columns, self.transposed) {
            (None, _) => vec![self.rows.len()],
            (Some(columns), false) => vec![self.rows.len(), columns],
            (Some(columns), true) => vec![columns, self.rows.len()],
        }
    }

    /// The elements in the file's order, out of the full parameter.
    pub fn take(&self, full: &[f32]) -> Vec<f32> {
        let columns = self.columns.unwrap_or(1);
        let rows = &full[self.rows.start * columns..self.rows.end * columns];
        if self.transposed { transpose(rows, columns) } else { rows.to_vec() }
    }

    /// Puts elements in the file's order into the full parameter.
    pub fn put(&self, elements: &[f32], full: &mut [f32]) {
        let columns = self.columns.unwrap_or(1);
        let rows = &mut full[self.rows.start * columns..self.rows.end * columns];
        match self.transposed {
            true => rows.copy_from_slice(&transpose(elements, self.rows.len())),
            false => rows.copy_from_slice(elements),
        }
    }
}

/// Rows of `columns` with columns for rows, in tiles that stay in the cache.
fn transpose(matrix: &[f32], columns: usize) -> Vec<f32> {
    const TILE: usize = 32;
    let rows = matrix.len() / columns.max(1);
    let mut out = vec![0.0; matrix.len()];
    for first_row in (0..rows).step_by(TILE) {
        for first in (0..columns).step_by(TILE) {
            for row in first_row..rows.min(first_row + TILE) {
                for column in first..columns.min(first + TILE) {
                    out[column * rows + row] = matrix[row * columns + column];
                }
            }
        }
    }
    out
}

/// The tensors that hold a parameter of `full_shape` rows and columns, one below the other.
pub(crate) fn stored(
    model: &Model,
    layer: Layer,
    name: ParameterName,
    full_shape: [usize; 2],
) -> Vec<Stored> {
    let family = Family::of(model);
    let is_bias = matches!(
        name,
        ParameterName::QkvBias
            | ParameterName::ProjectionBias
            | ParameterName::Fc1Bias
            | ParameterName::Fc2Bias
            | ParameterName::HeadBias
            | ParameterName::NormBias(_)
            | ParameterName::FinalNormBias
    );
    let modules = modules(model, family, layer, name);
    let ending = if is_bias { "bias" } else { "weight" };
    let product = matches!(
        name,
        ParameterName::Qkv | ParameterName::Projection | ParameterName::Fc1 | ParameterName::Fc2
    );
    let vector = is_bias || matches!(name, ParameterName::NormGain(_) | ParameterName::FinalNormGain);
    let mut first = 0;
    let one = |(module, rows): (Cow<'static, str>, Option<usize>)| {
        let rows = rows.unwrap_or(full_shape[0]);
        first += rows;
        Stored {
            name: format!("{}{module}.{ending}", prefix(family, layer, name)),
            rows: first - rows..first,
            columns: (!vector).then_some(full_shape[1]),
            transposed: product && family == Family::Gpt2,
        }
    };
    modules.into_iter().map(one).collect()
}

/// What stands before a module's name.
fn prefix(family: Family, layer: Layer, name: ParameterName) -> String {
    match (family, layer, name) {
        (_, _, ParameterName::Head | ParameterName::HeadBias) => String::new(),
        (Family::Gpt2, Layer::Block(index), _) => format!("transformer.h.{index}."),
        (Family::Gpt2, ..) => "transformer.".into(),
        (Family::Llama, Layer::Block(index), _) => format!("model.layers.{index}."),
        (Family::Llama, ..) => "model.".into(),
    }
}

/// The modules that a parameter is spread over, each with its rows unless it has all.
fn modules(
    model: &Model,
    family: Family,
    layer: Layer,
    name: ParameterName,
) -> Vec<(Cow<'static, str>, Option<usize>)> {
    if let ParameterName::ExpertFc1 | ParameterName::ExpertFc2 = name {
        return expert_modules(model, layer, name);
    }
    let dense = dense_modules(model, family, layer, name);
    dense.into_iter().map(|(module, rows)| (module.into(), rows)).collect()
}

/// The matrices of each expert: w1 is the gate, w3 up, w2 down.
fn expert_modules(
    model: &Model,
    layer: Layer,
    name: ParameterName,
) -> Vec<(Cow<'static, str>, Option<usize>)> {
    let Layer::Block(index) = layer else { unreachable!("experts are in blocks") };
    let Mlp::Experts(experts) = &block(model, index).mlp else { unreachable!("the block has experts") };
    let (matrices, rows): (&[&str], usize) = match name {
        ParameterName::ExpertFc2 => (&["w2"], model.hidden),
        _ if experts.expert.gated => (&["w1", "w3"], experts.expert.width),
        _ => (&["w1"], experts.expert.width),
    };
    let of = |expert: usize| {
        let name = move |matrix: &&str| format!("block_sparse_moe.experts.{expert}.{matrix}").into();
        matrices.iter().map(move |matrix| (name(matrix), Some(rows)))
    };
    (0..experts.count).flat_map(of).collect()
}

fn dense_modules(
    model: &Model,
    family: Family,
    layer: Layer,
    name: ParameterName,
) -> Vec<(&'static str, Option<usize>)> {
    let one = |gpt2, llama| vec![(if family == Family::Gpt2 { gpt2 } else { llama }, None)];
    match name {
        ParameterName::TokenEmbedding => one("wte", "embed_tokens"),
        ParameterName::PositionEmbedding => one("wpe", "embed_positions"),
        ParameterName::NormGain(0) | ParameterName::NormBias(0) => one("ln_1", "input_layernorm"),
        ParameterName::NormGain(_) | ParameterName::NormBias(_) => one("ln_2", "post_attention_layernorm"),
        ParameterName::Qkv | ParameterName::QkvBias if family == Family::Llama => {
            let Layer::Block(index) = layer else { unreachable!("attention is in blocks") };
            let attention = &block(model, index).attention;
            let [queries, keys, values] = [
                attention.heads * attention.head_dim,
                attention.kv_heads * attention.head_dim,
                attention.kv_heads * attention.value_head_dim,
            ];
            vec![
                ("self_attn.q_proj", Some(queries)),
                ("self_attn.k_proj", Some(keys)),
                ("self_attn.v_proj", Some(values)),
            ]
        }
        ParameterName::Qkv | ParameterName::QkvBias => vec![("attn.c_attn", None)],
        ParameterName::Projection | ParameterName::ProjectionBias => one("attn.c_proj", "self_attn.o_proj"),
        ParameterName::Fc1 | ParameterName::Fc1Bias => {
            let Layer::Block(index) = layer else { unreachable!("feed-forward layers are in blocks") };
            match &block(model, index).mlp {
                Mlp::Dense(mlp) if mlp.gated && family == Family::Llama => {
                    vec![("mlp.gate_proj", Some(mlp.width)), ("mlp.up_proj", Some(mlp.width))]
                }
                _ => one("mlp.c_fc", "mlp.up_proj"),
            }
        }
        ParameterName::Fc2 | ParameterName::Fc2Bias => one("mlp.c_proj", "mlp.down_proj"),
        ParameterName::FinalNormGain | ParameterName::FinalNormBias => one("ln_f", "norm"),
        ParameterName::Head | ParameterName::HeadBias => one("lm_head", "lm_head"),
        ParameterName::Router => vec![("block_sparse_moe.gate", None)],
        ParameterName::ExpertFc1 | ParameterName::ExpertFc2 => unreachable!("each expert has matrices"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two experts of width 3: the rows of a gate, of what it multiplies, and so on; as many rows down as the model is wide.
    #[test]
    fn each_expert_has_tensors_of_its_own() {
        let config = r#"{"model_type": "mixtral", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
            "num_hidden_layers": 2, "intermediate_size": 3, "vocab_size": 9, "hidden_act": "silu",
            "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": null}"#;
        let model = trainwright_spec::model::hf::from_hugging_face(config, "config.json").unwrap();
        let tensors = |name, full_shape: [usize; 2]| -> Vec<(String, Range<usize>)> {
            let stored = stored(&model, Layer::Block(1), name, full_shape).into_iter();
            stored
                .inspect(|stored| assert!(!stored.transposed))
                .map(|stored| (stored.name, stored.rows))
                .collect()
        };
        let named = |tensors: &[(&str, Range<usize>)]| -> Vec<(String, Range<usize>)> {
            let full = |name: &str| format!("model.layers.1.block_sparse_moe.{name}.weight");
            tensors.iter().map(|(name, rows)| (full(name), rows.clone())).collect()
        };
        let first =
            [("experts.0.w1", 0..3), ("experts.0.w3", 3..6), ("experts.1.w1", 6..9), ("experts.1.w3", 9..12)];
        assert_eq!(tensors(ParameterName::ExpertFc1, [12, 8]), named(&first));
        let second = [("experts.0.w2", 0..8), ("experts.1.w2", 8..16)];
        assert_eq!(tensors(ParameterName::ExpertFc2, [16, 3]), named(&second));
        assert_eq!(tensors(ParameterName::Router, [2, 8]), named(&[("gate", 0..2)]));
    }

    #[test]
    fn what_is_taken_can_be_put_back() {
        let full: Vec<f32> = (0..70 * 40).map(|number| number as f32).collect();
        for transposed in [false, true] {
            let stored = Stored { name: "a".into(), rows: 3..67, columns: Some(40), transposed };
            let taken = stored.take(&full);
            // Element (3, 1) is second in its row, or the first of the second row of 64.
            assert_eq!(taken[if transposed { 64 } else { 1 }], 121.0);
            let mut again = vec![0.0; full.len()];
            stored.put(&taken, &mut again);
            assert_eq!(again[120..2680], full[120..2680]);
            assert_eq!(stored.shape(), if transposed { vec![40, 64] } else { vec![64, 40] });
        }
    }
}
