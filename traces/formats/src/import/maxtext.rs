//! The YAML of MaxText over its `base.yml`, or values by `--set`.

use super::arguments::quoted;
use super::keys::Keys;
use super::tables::Tables;
use super::{Imported, Importer, Request, even, named, shard, stages};
use crate::export::MAXTEXT_MODELS;
use serde_json::Value;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{
    HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, RANKS, SEQUENCES, TOKENS, VOCAB,
};
use trainwright_spec::model::{Model, hf, preset};
use trainwright_spec::optimizer::Moments;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// MaxText.
pub struct MaxText;

/// The keys that decide the choices of a plan.
const KEYS: Keys = &[
    ("mesh.tensor", "ici_tensor_parallelism"),
    ("mesh.tensor", "ici_tensor_sequence_parallelism"),
    ("mesh.context", "ici_context_parallelism"),
    ("mesh.pipeline", "ici_pipeline_parallelism"),
    ("mesh.pipeline", "dcn_pipeline_parallelism"),
    ("mesh.expert", "ici_expert_parallelism"),
    ("mesh.expert", "dcn_expert_parallelism"),
    ("sequence_parallel", "ici_tensor_sequence_parallelism"),
    ("context_scheme", "context_parallel_strategy"),
    ("schedule", "num_pipeline_repeats"),
    ("schedule", "num_pipeline_microbatches"),
    ("virtual_stages", "num_pipeline_repeats"),
    ("job.global_batch", "per_device_batch_size"),
    ("job.sequence", "max_target_length"),
    ("job.precision", "quantization"),
    ("job.precision", "dtype"),
    ("job.optimizer", "opt_type"),
    ("offload.parameters", "parameter_memory_host_offload"),
    ("offload", "optimizer_memory_host_offload"),
    ("offload", "parameter_memory_host_offload"),
];

/// The axes of its mesh that a plan has, and those that share the weights as `fsdp` does.
const AXES: [&str; 9] = [
    "data",
    "fsdp",
    "fsdp_transpose",
    "expert",
    "context",
    "sequence",
    "tensor",
    "tensor_sequence",
    "pipeline",
];

impl Importer for MaxText {
    fn name(&self) -> &'static str {
        "maxtext"
    }

    fn summary(&self) -> &'static str {
        "MaxText's YAML over base.yml"
    }

    fn stack(&self) -> &'static str {
        "maxtext"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let tables = Tables::from_yaml(request)?;
        tables.get("base_config");
        let model = model(&tables, request)?;
        let in_file = tables.count("max_target_length", TOKENS)?;
        if in_file.is_none() && request.sequence.is_none() {
            tables.assume("max_target_length", 2048);
        }
        let mut plan = request.blank(model, request.sequence.or(in_file).unwrap_or(2048));
        mesh(&tables, request, &mut plan)?;
        batch(&tables, request, &mut plan)?;
        state(&tables, request, &mut plan)?;
        Ok(tables.imported(plan, KEYS))
    }
}

fn model(tables: &Tables, request: &Request) -> Result<Model, SpecError> {
    let name = tables.text("model_name")?.filter(|name| name != "default");
    let described = match &name {
        Some(_) => None,
        None => Some(described(tables, request)),
    };
    if let Some(model) = &request.model {
        return Ok(model.clone());
    }
    let Some(name) = name else { return described.expect("there is no name").map(named) };
    match MAXTEXT_MODELS.iter().find(|(_, other)| *other == name) {
        Some((known, _)) => {
            let first = MAXTEXT_MODELS.iter().find(|(preset, _)| preset == known).map(|(_, first)| *first);
            if let Some(first) = first.filter(|first| *first != name) {
                tables.assume("model_name", format!("{first}, which differs in rotary positions alone"));
            }
            resized(tables, request, preset::preset(known)?)
        }
        None => {
            let known: Vec<&str> = MAXTEXT_MODELS.iter().map(|(_, other)| *other).collect();
            let allowed = format!("known are {}; others by --model", known.join(", "));
            Err(request.bad("model_name", quoted(&name), allowed))
        }
    }
}

/// A named model with another number of layers, the only size that may stand beside the name.
fn resized(tables: &Tables, request: &Request, mut model: Model) -> Result<Model, SpecError> {
    for key in ["base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "base_mlp_dim", "head_dim"] {
        if let Some(value) = tables.get(key) {
            let allowed = "only base_num_decoder_layers may stand beside model_name; other models by --model";
            return Err(request.bad(key, value, allowed));
        }
    }
    let key = "base_num_decoder_layers";
    let Some(layers) = tables.count(key, LAYERS)? else { return Ok(model) };
    match model.blocks.as_mut_slice() {
        [run] => run.count = layers,
        _ => return Err(request.bad(key, layers, "the blocks of this model differ: give it by --model")),
    }
    Ok(named(Model { name: request.origin.into(), ..model }))
}

/// The model that sizes describe; missing ones are those of `base.yml`.
fn described(tables: &Tables, request: &Request) -> Result<Model, SpecError> {
    let count =
        |key: &str, usual: usize, limit| Ok::<usize, SpecError>(tables.count(key, limit)?.unwrap_or(usual));
    let number = |key: &str, usual: f64| Ok::<f64, SpecError>(tables.number(key)?.unwrap_or(usual));
    let block = tables.text("decoder_block")?.unwrap_or_else(|| "llama2".into());
    let family = match block.as_str() {
        "llama2" | "mistral" | "default" => "llama",
        "mixtral" => "mixtral",
        "qwen3" => "qwen3",
        "gemma" => "gemma",
        other => {
            let allowed = "llama2, mistral, mixtral, qwen3 or gemma; others by --model";
            return Err(request.bad_text("decoder_block", other, allowed));
        }
    };
    let mut keys = serde_json::json!({
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": count("base_emb_dim", 2048, HIDDEN)?,
        "num_attention_heads": count("base_num_query_heads", 16, HEADS)?,
        "num_key_value_heads": count("base_num_kv_heads", 16, KV_HEADS)?,
        "num_hidden_layers": count("base_num_decoder_layers", 16, LAYERS)?,
        "intermediate_size": count("base_mlp_dim", 7168, INNER)?,
        "head_dim": count("head_dim", 128, HEAD_DIM)?,
        "vocab_size": count("vocab_size", 32_000, VOCAB)?,
        "tie_word_embeddings": tables.flag("logits_via_embedding")?,
        "rms_norm_eps": number("normalization_layer_epsilon", 1e-5)?,
        "rope_theta": number("rope_max_timescale", 1e4)?,
        "max_position_embeddings": 2048,
    });
    if family == "mixtral" {
        keys["num_local_experts"] = count("num_experts", 8, RANKS)?.into();
        keys["num_experts_per_tok"] = count("num_experts_per_tok", 2, RANKS)?.into();
        tables.get("base_moe_mlp_dim");
    }
    if tables.text("attention_type")?.as_deref() == Some("local_sliding") {
        keys["model_type"] = if family == "mixtral" { "mixtral" } else { "mistral" }.into();
        keys["sliding_window"] = count("sliding_window_size", 4096, TOKENS)?.into();
    }
    for key in ["mlp_activations", "enable_dropout", "rope_type", "num_experts", "num_experts_per_tok"] {
        tables.get(key);
    }
    hf::from_hugging_face(&keys.to_string(), request.origin)
}

fn mesh(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let gpus = request.cluster.gpus();
    let (in_node, nodes) = (request.cluster.node.gpus.value, request.cluster.nodes);
    let mut degrees = [1usize; AXES.len()];
    // One axis of each part may be -1: it takes what is left.
    for (part, total, usual) in [("ici", in_node, "fsdp"), ("dcn", nodes, "data")] {
        let mut open = None;
        let mut taken = 1usize;
        for (index, axis) in AXES.iter().enumerate() {
            let key = format!("{part}_{axis}_parallelism");
            let given = tables.get(&key).and_then(Value::as_i64);
            let degree = given.unwrap_or(if *axis == usual { -1 } else { 1 });
            if degree < 0 {
                open = open.or(Some(index));
            } else {
                let degree = tables.count(&key, RANKS.or_zero())?.unwrap_or(1).max(1);
                degrees[index] = degrees[index].saturating_mul(degree);
                taken = taken.saturating_mul(degree);
            }
        }
        if let Some(index) = open {
            degrees[index] = degrees[index].saturating_mul((total / taken).max(1));
        }
    }
    let of = |axis: &str| AXES.iter().position(|name| *name == axis).map_or(1, |index| degrees[index]);
    let product = degrees.iter().fold(1usize, |product, degree| product.saturating_mul(*degree));
    if product != gpus {
        let allowed = format!("the product of all axes must be the {gpus} GPUs of {}", request.cluster.name);
        return Err(request.bad("ici_ and dcn_ parallelism", product, allowed));
    }
    let mesh = &mut plan.mesh;
    mesh.tensor = of("tensor") * of("tensor_sequence");
    plan.sequence_parallel = of("tensor_sequence") > 1;
    mesh.context = of("context") * of("sequence");
    mesh.pipeline = of("pipeline");
    mesh.expert = of("expert");
    let shards = of("fsdp") * of("fsdp_transpose") * mesh.expert;
    mesh.data = shards * of("data");
    let optimizer = tables.flag("shard_optimizer_over_data")?;
    // Context ranks divide the weights too.
    let scheme = match (shards * plan.mesh.context > 1, optimizer) {
        (true, _) if of("data") > 1 => "hsdp",
        (true, _) => "fsdp",
        (false, true) => "zero1",
        (false, false) => "none",
    };
    if optimizer && scheme == "hsdp" {
        tables.assume("shard_optimizer_over_data", "false: the ranks that divide the weights divide it");
    }
    let shard_ranks = shards * plan.mesh.context;
    plan.mesh.shard = (scheme == "hsdp").then_some(shard_ranks);
    shard(plan, scheme);
    plan.context_scheme = match tables.text("context_parallel_strategy")?.as_deref() {
        Some("ring") => "ring",
        Some("ulysses") => "ulysses",
        None | Some("all_gather") if plan.mesh.context > 1 => "all-gather",
        _ => "ring",
    }
    .into();
    plan.stack.sequence_parallel |= plan.sequence_parallel;
    Ok(())
}

fn batch(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let of_device = tables.number("per_device_batch_size")?;
    if of_device.is_none() {
        tables.assume("per_device_batch_size", 12);
    }
    let of_device = of_device.unwrap_or(12.0);
    let steps = tables.count("gradient_accumulation_steps", SEQUENCES)?.unwrap_or(1);
    let at_once = of_device * plan.mesh.ranks() as f64;
    if at_once.fract() != 0.0 || !(1.0..=1e7).contains(&at_once) {
        let allowed = format!("times the {} devices it must be a whole number", plan.mesh.ranks());
        return Err(request.bad("per_device_batch_size", of_device, allowed));
    }
    plan.job.global_batch = (at_once as usize).saturating_mul(steps);
    let cut = tables.count("num_pipeline_microbatches", SEQUENCES)?;
    let microbatches = if plan.mesh.pipeline > 1 { cut.unwrap_or(plan.mesh.pipeline) } else { steps };
    plan.micro_batch = (plan.job.global_batch / plan.mesh.data.saturating_mul(microbatches).max(1)).max(1);
    let of_stage = tables.count("num_layers_per_pipeline_stage", LAYERS)?.unwrap_or(1);
    let repeats = tables.count("num_pipeline_repeats", LAYERS)?;
    let piped = tables.count("pipeline_parallel_layers", LAYERS)?;
    let layers = plan.model.layers();
    plan.virtual_stages = match plan.mesh.pipeline {
        1 => 1,
        ranks => repeats.unwrap_or(piped.unwrap_or(layers) / (ranks * of_stage)).max(1),
    };
    let number = plan.mesh.pipeline * plan.virtual_stages;
    if plan.mesh.pipeline > 1 && of_stage * number != piped.unwrap_or(layers) {
        let allowed = format!("times {number} stages they must be the {layers} layers");
        return Err(request.bad("num_layers_per_pipeline_stage", of_stage, allowed));
    }
    plan.schedule = match (plan.mesh.pipeline, plan.virtual_stages) {
        (1, _) => "1f1b",
        (_, 1) => "gpipe",
        _ => "breadth-first",
    }
    .into();
    let policy = tables.text("remat_policy")?.unwrap_or_else(|| "full".into());
    let choice = match policy.as_str() {
        "full" => Recompute::Full,
        "minimal_with_context" | "minimal_flash" | "none" => Recompute::None,
        "minimal" => Recompute::Selective,
        other => {
            tables.assume("remat_policy", format!("full instead of {other}"));
            Recompute::Full
        }
    };
    plan.stages = stages(&even(layers, number), choice);
    Ok(())
}

fn state(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let base = match tables.text("dtype")?.as_deref() {
        None | Some("bfloat16") => Precision::Bf16,
        Some("float32") => Precision::Fp32,
        Some(other) => return Err(request.bad_text("dtype", other, "bfloat16 or float32")),
    };
    plan.job.precision = match tables.text("quantization")?.as_deref() {
        None | Some("") => base,
        Some("int8") => Precision::Int8,
        Some(name) if name.contains("fp8") => Precision::Fp8,
        Some(other) => return Err(request.bad_text("quantization", other, "fp8 or int8")),
    };
    tables.text("weight_dtype")?;
    let of_stack = plan.stack.gradient_precision(plan.job.precision).base();
    let given = match tables.text("grad_dtype")?.as_deref() {
        Some("bfloat16") => Some(Precision::Bf16),
        Some(_) => Some(Precision::Fp32),
        None => None,
    };
    plan.state.gradients = given.filter(|gradients| *gradients != of_stack || of_stack == Precision::Bf16);
    if tables.text("mu_dtype")?.as_deref() == Some("bfloat16") {
        plan.state.moments = Moments::Bf16;
    }
    plan.job.optimizer = match tables.text("opt_type")?.as_deref() {
        None | Some("adamw" | "adam_pax") => "adamw".into(),
        Some("sgd") => "sgd".into(),
        Some("muon") => "muon".into(),
        Some(other) => return Err(request.bad_text("opt_type", other, "adamw, adam_pax, sgd or muon")),
    };
    plan.job.gradient_clipping = tables.number("gradient_clipping_threshold")?.unwrap_or(1.0) > 0.0;
    if tables.flag("optimizer_memory_host_offload")? {
        plan.offload.optimizer = Some(Place::Host);
    }
    if tables.flag("parameter_memory_host_offload")? {
        plan.offload.parameters = Some(Place::Host);
    }
    Ok(())
}
