//! Megatron's settings in YAML or as overrides: each key is the argument of the same name, or one of `RENAMED`.

use super::Request;
use super::arguments::Arguments;
use super::tables::Tables;
use serde_json::Value;
use std::collections::BTreeMap;
use trainwright_spec::error::SpecError;

/// Fields of Megatron-Core's configurations whose argument has another name.
const RENAMED: &[(&str, &str)] = &[
    ("activations_checkpoint_granularity", "--recompute-granularity"),
    ("activations_checkpoint_method", "--recompute-method"),
    ("activations_checkpoint_num_layers", "--recompute-num-layers"),
    ("bucket_size", "--ddp-bucket-size"),
    ("encoder_seq_length", "--seq-length"),
    ("fp4", "--fp4-format"),
    ("fp8", "--fp8-format"),
    ("grad_reduce_in_fp32", "--accumulate-allreduce-grads-in-fp32"),
    ("layernorm_epsilon", "--norm-epsilon"),
    ("layernorm_zero_centered_gamma", "--apply-layernorm-1p"),
    ("microbatch_group_size_per_vp_stage", "--microbatch-group-size-per-virtual-pipeline-stage"),
    ("num_layers_in_first_pipeline_stage", "--decoder-first-pipeline-num-layers"),
    ("num_layers_in_last_pipeline_stage", "--decoder-last-pipeline-num-layers"),
    ("num_moe_experts", "--num-experts"),
    ("virtual_pipeline_model_parallel_size", "--num-virtual-stages-per-pipeline-rank"),
];

/// Fields that arguments turn off: false is the flag.
const TURNED_OFF: &[(&str, &str)] = &[
    ("add_bias_linear", "--disable-bias-linear"),
    ("bias", "--disable-bias-linear"),
    ("bias_activation_fusion", "--no-bias-swiglu-fusion"),
    ("bias_dropout_add_fusion", "--no-bias-dropout-fusion"),
    ("bias_dropout_fusion", "--no-bias-dropout-fusion"),
    ("gradient_accumulation_fusion", "--no-gradient-accumulation-fusion"),
    ("masked_softmax_fusion", "--no-masked-softmax-fusion"),
    ("overlap_p2p_comm", "--no-overlap-p2p-communication"),
    ("share_embeddings_and_output_weights", "--untie-embeddings-and-output-weights"),
];

/// Reads a YAML file of Megatron-LM, `--yaml-cfg`.
///
/// # Errors
/// `Syntax` with the parser's message.
pub fn of_file<'a>(request: &'a Request<'a>) -> Result<Arguments<'a>, SpecError> {
    let tables = Tables::from_yaml(request)?;
    Ok(of_tables(request, &tables))
}

/// The arguments of nested tables; the sections do not count.
pub fn of_tables<'a>(request: &'a Request<'a>, tables: &Tables) -> Arguments<'a> {
    let mut flags = BTreeMap::new();
    tables.leaves(&mut |path, value| {
        let key = path.rsplit('.').next().unwrap_or(path);
        if let Some((flag, values)) = flag(key, value) {
            flags.insert(flag, values);
        }
    });
    // One query group a head is what stands for none.
    if flags.contains_key("--num-query-groups") {
        flags.insert("--group-query-attention".into(), Vec::new());
    }
    Arguments::of_flags(request, flags)
}

/// The argument of a key, unless its value is that of an argument that is not given.
fn flag(key: &str, value: &Value) -> Option<(String, Vec<String>)> {
    if let Some((_, flag)) = TURNED_OFF.iter().find(|(name, _)| *name == key) {
        return (*value == false).then(|| (flag.to_string(), Vec::new()));
    }
    if ["activation_func", "activation"].contains(&key) {
        let flag = match value.as_str()? {
            "swiglu" | "fast-swiglu" => "--swiglu",
            "squaredrelu" | "squared-relu" => "--squared-relu",
            "quick_geglu" => "--quick-geglu",
            _ => return None,
        };
        return Some((flag.into(), Vec::new()));
    }
    let renamed = RENAMED.iter().find(|(name, _)| *name == key).map(|(_, flag)| flag.to_string());
    let flag = renamed.unwrap_or_else(|| format!("--{}", key.replace('_', "-")));
    match (key, value) {
        (_, Value::Null | Value::Bool(false)) => None,
        ("fp8" | "fp4", Value::Bool(true)) => Some((flag, vec!["hybrid".into()])),
        ("tp_comm_overlap", Value::Bool(true)) => Some((flag, Vec::new())),
        ("normalization", Value::String(text)) => {
            let text = if text == "rmsnorm" { "RMSNorm" } else { text };
            let text = if text.starts_with("layernorm") { "LayerNorm" } else { text };
            Some((flag, vec![text.into()]))
        }
        (_, Value::Bool(true)) => Some((flag, Vec::new())),
        (_, Value::Array(values)) => Some((flag, values.iter().map(text).collect())),
        (_, Value::Object(_)) => None,
        (_, value) => Some((flag, vec![text(value)])),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // 1e0 and 8.0 are whole numbers to people.
        Value::Number(number) => {
            match number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15) {
                Some(whole) => format!("{whole:.0}"),
                None => number.to_string(),
            }
        }
        other => other.to_string(),
    }
}
