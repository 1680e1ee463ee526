//! The YAML of nanotron's `run_train.py`.

use super::keys::Keys;
use super::tables::Tables;
use super::{Imported, Importer, Request, even, named, shard, stages};
use serde_json::Value;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{RANKS, SEQUENCES, TOKENS};
use trainwright_spec::model::{Model, hf};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;

/// nanotron.
pub struct Nanotron;

/// The keys that decide the choices of a plan.
const KEYS: Keys = &[
    ("mesh.tensor", "parallelism.tp"),
    ("mesh.pipeline", "parallelism.pp"),
    ("mesh.context", "parallelism.context_parallel_size"),
    ("mesh.expert", "parallelism.expert_parallel_size"),
    ("sequence_parallel", "parallelism.tp_mode"),
    ("schedule", "parallelism.pp_engine"),
    ("data_sharding", "optimizer.zero_stage"),
    ("micro_batch", "tokens.micro_batch_size"),
    ("job.global_batch", "tokens.batch_accumulation_per_replica"),
    ("job.sequence", "tokens.sequence_length"),
    ("job.precision", "model.dtype"),
    ("job.optimizer", "optimizer.optimizer_factory.name"),
];

impl Importer for Nanotron {
    fn name(&self) -> &'static str {
        "nanotron"
    }

    fn summary(&self) -> &'static str {
        "nanotron's YAML"
    }

    fn stack(&self) -> &'static str {
        "nanotron"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let tables = Tables::from_yaml(request)?;
        let described = model(&tables, request);
        let model = match &request.model {
            Some(model) => model.clone(),
            None => named(described?),
        };
        let in_file = tables.count("tokens.sequence_length", TOKENS)?;
        let sequence = request.sequence.or(in_file);
        let sequence =
            sequence.ok_or_else(|| request.missing("tokens.sequence_length", "tokens in a sequence"))?;
        let mut plan = request.blank(model, sequence);
        mesh(&tables, request, &mut plan)?;
        job(&tables, request, &mut plan)?;
        Ok(tables.imported(plan, KEYS))
    }
}

/// `model.model_config` has the keys of a Hugging Face configuration, and a flag instead of its type.
fn model(tables: &Tables, request: &Request) -> Result<Model, SpecError> {
    let key = "model.model_config";
    let config = tables.get(key).and_then(Value::as_object);
    let mut config = config.ok_or_else(|| request.missing(key, "the sizes of the model"))?.clone();
    let is = |flag: &str| config.get(flag).is_some_and(|value| value == true);
    let experts = config.get("moe_config").is_some_and(|value| !value.is_null());
    let family = match (is("is_qwen2_config"), is("is_starcoder2_config")) {
        (true, _) if experts => "qwen2_moe",
        (true, _) => "qwen2",
        (_, true) => return Err(request.bad(key, "starcoder2", "LLaMA or Qwen 2; others by --model")),
        _ => "llama",
    };
    if let Some(Value::Object(of_experts)) = config.remove("moe_config") {
        let number = |name: &str| of_experts.get(name).cloned().unwrap_or(Value::Null);
        let width = config.get("intermediate_size").cloned().unwrap_or(Value::Null);
        config.insert("num_experts".into(), number("num_experts"));
        config.insert("num_experts_per_tok".into(), number("top_k"));
        let inner = of_experts.get("moe_intermediate_size").cloned().unwrap_or(width.clone());
        config.insert("moe_intermediate_size".into(), inner);
        let shared = of_experts.get("enable_shared_expert").is_some_and(|value| value == true);
        let of_shared = of_experts.get("shared_expert_intermediate_size").cloned().unwrap_or(width);
        config.insert("shared_expert_intermediate_size".into(), if shared { of_shared } else { 0.into() });
    }
    config.insert("model_type".into(), family.into());
    if family != "llama" {
        // Its windows are for all layers, and only if the key is there.
        config.insert("use_sliding_window".into(), false.into());
    }
    hf::from_hugging_face(&Value::Object(config).to_string(), request.origin)
}

fn mesh(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let key = |name: &str| format!("parallelism.{name}");
    let ranks = |name: &str| Ok::<usize, SpecError>(tables.count(&key(name), RANKS)?.unwrap_or(1));
    let mesh = &mut plan.mesh;
    mesh.tensor = ranks("tp")?;
    mesh.pipeline = ranks("pp")?;
    mesh.context = ranks("context_parallel_size")?;
    let others = mesh.tensor.saturating_mul(mesh.pipeline).saturating_mul(mesh.context);
    mesh.data = request.data_ranks(others, "tp x pp x context_parallel_size")?;
    let data = ranks("dp")?;
    if data != mesh.data {
        tables.assume("parallelism.dp", format!("{} instead of {data}, as the cluster has", mesh.data));
    }
    let expert = ranks("expert_parallel_size")?;
    if crate::export::fields::has_experts(plan) {
        plan.mesh.expert = expert;
    }
    let mode = tables.text(&key("tp_mode"))?.unwrap_or_else(|| "ALL_REDUCE".into());
    plan.sequence_parallel = mode.to_uppercase().ends_with("REDUCE_SCATTER") && plan.mesh.tensor > 1;
    plan.stack.sequence_parallel |= plan.sequence_parallel;
    plan.schedule = match tables.text(&key("pp_engine"))?.unwrap_or_else(|| "1f1b".into()).as_str() {
        "afab" if plan.mesh.pipeline > 1 => "gpipe".into(),
        "afab" | "1f1b" => "1f1b".into(),
        other => return Err(request.bad_text(&key("pp_engine"), other, "1f1b or afab")),
    };
    let full = tables.flag(&key("recompute_layer"))?;
    let choice = if full { Recompute::Full } else { Recompute::None };
    plan.stages = stages(&even(plan.model.layers(), plan.mesh.pipeline), choice);
    Ok(())
}

fn job(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let micro = tables.count("tokens.micro_batch_size", SEQUENCES)?;
    plan.micro_batch =
        micro.ok_or_else(|| request.missing("tokens.micro_batch_size", "sequences in a microbatch"))?;
    let steps = tables.count("tokens.batch_accumulation_per_replica", SEQUENCES)?.unwrap_or(1);
    plan.job.global_batch = plan.micro_batch.saturating_mul(steps).saturating_mul(plan.mesh.data);
    plan.job.precision = match tables.text("model.dtype")?.as_deref() {
        None | Some("bfloat16") => Precision::Bf16,
        Some("float16") => Precision::Fp16,
        Some("float32") => Precision::Fp32,
        Some(other) => return Err(request.bad_text("model.dtype", other, "bfloat16, float16 or float32")),
    };
    let wide = tables.flag("optimizer.accumulate_grad_in_fp32")?;
    let gradients = if wide { Precision::Fp32 } else { plan.job.precision };
    let of_stack = plan.stack.gradient_precision(plan.job.precision).base();
    plan.state.gradients = (of_stack != gradients).then_some(gradients);
    plan.job.gradient_clipping = tables.number("optimizer.clip_grad")?.is_some_and(|limit| limit > 0.0);
    plan.job.optimizer = match tables.text("optimizer.optimizer_factory.name")?.as_deref() {
        None | Some("adamW") => "adamw".into(),
        Some("sgd") => "sgd".into(),
        Some(other) => {
            return Err(request.bad_text("optimizer.optimizer_factory.name", other, "adamW or sgd"));
        }
    };
    let scheme = match tables.count("optimizer.zero_stage", RANKS.or_zero())?.unwrap_or(0) {
        0 => "none",
        1 => "zero1",
        other => return Err(request.bad("optimizer.zero_stage", other, "0 or 1")),
    };
    shard(plan, scheme);
    Ok(())
}
