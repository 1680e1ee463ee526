//! The YAML of llm-foundry's `train.py`.

use super::keys::Keys;
use super::tables::Tables;
use super::{Imported, Importer, Request, even, named, shard, stages};
use serde_json::Value;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{HEADS, HIDDEN, KV_HEADS, LAYERS, SEQUENCES, TOKENS, VOCAB};
use trainwright_spec::model::{
    Activation, Attention, Block, BlockRun, Embedding, FeedForward, Head, Mask, Mlp, Model, Norm, Position,
    preset,
};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// llm-foundry.
pub struct LlmFoundry;

/// The keys that decide the choices of a plan.
const KEYS: Keys = &[
    ("data_sharding", "fsdp_config.sharding_strategy"),
    ("mesh.shard", "fsdp_config.sharding_strategy"),
    ("micro_batch", "device_train_microbatch_size"),
    ("job.global_batch", "global_train_batch_size"),
    ("job.sequence", "max_seq_len"),
    ("job.precision", "precision"),
    ("job.optimizer", "optimizer.name"),
    ("offload", "fsdp_config.activation_cpu_offload"),
];

impl Importer for LlmFoundry {
    fn name(&self) -> &'static str {
        "llm-foundry"
    }

    fn summary(&self) -> &'static str {
        "llm-foundry's YAML of train.py"
    }

    fn stack(&self) -> &'static str {
        "llm-foundry"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let tables = Tables::from_yaml(request)?.interpolated();
        let in_file = tables.count("max_seq_len", TOKENS)?.or(tables.count("variables.max_seq_len", TOKENS)?);
        let sequence = request.sequence.or(in_file);
        let sequence = sequence.ok_or_else(|| request.missing("max_seq_len", "tokens in a sequence"))?;
        let described = model(&tables, request, sequence);
        let model = match &request.model {
            Some(model) => model.clone(),
            None => named(described?),
        };
        let mut plan = request.blank(model, sequence);
        plan.mesh.data = request.data_ranks(1, "ranks")?;
        job(&tables, request, &mut plan)?;
        state(&tables, request, &mut plan)?;
        Ok(tables.imported(plan, KEYS))
    }
}

fn model(tables: &Tables, request: &Request, sequence: usize) -> Result<Model, SpecError> {
    let kind = tables.text("model.name")?.unwrap_or_else(|| "mpt_causal_lm".into());
    let source = tables.text("model.pretrained_model_name_or_path")?;
    if kind != "mpt_causal_lm" {
        let name = source.as_deref().unwrap_or(&kind);
        let short = name.rsplit('/').next().unwrap_or(name).to_lowercase();
        return preset::preset(&short).map_err(|_| {
            request.bad_text(
                "model.pretrained_model_name_or_path",
                name,
                "a model of the catalog; others by --model",
            )
        });
    }
    let needed = |key: &str, limit: trainwright_spec::limits::Count| {
        let path = format!("model.{key}");
        tables.count(&path, limit)?.ok_or_else(|| request.missing(&path, limit.expected()))
    };
    let (hidden, heads) = (needed("d_model", HIDDEN)?, needed("n_heads", HEADS)?);
    let (layers, vocab) = (needed("n_layers", LAYERS)?, needed("vocab_size", VOCAB)?);
    let ratio = tables.number("model.expansion_ratio")?.unwrap_or(4.0);
    let grouped = tables.count("model.attn_config.kv_n_heads", KV_HEADS)?;
    let kv_heads = match tables.text("model.attn_config.attn_type")?.as_deref() {
        Some("multiquery_attention") => 1,
        Some("grouped_query_attention") => grouped.unwrap_or(heads),
        _ => heads,
    };
    let alibi = tables.flag("model.attn_config.alibi")?;
    let rope = tables.flag("model.attn_config.rope")?;
    let qk_norm = tables.flag("model.attn_config.qk_ln")?;
    let bias = !tables.flag("model.no_bias")?;
    let low_precision = tables.text("model.norm_type")?.unwrap_or_else(|| "low_precision_layernorm".into());
    let norm = if low_precision.contains("rms") { Norm::RmsNorm } else { Norm::LayerNorm };
    let gated = tables.text("model.ffn_config.ffn_type")?.is_some_and(|kind| kind.contains("glu"));
    tables.get("model.init_device");
    tables.get("model.attn_config.attn_impl");
    tables.get("model.max_seq_len");
    let attention = Attention {
        heads,
        kv_heads,
        head_dim: hidden / heads.max(1),
        value_head_dim: hidden / heads.max(1),
        mask: Mask::Causal,
        rotary: rope,
        rotary_head_dim: None,
        rotary_base: if rope { tables.number("model.attn_config.rope_theta")? } else { None },
        qkv_bias: bias,
        output_bias: bias,
        qk_norm,
        latent: None,
        output_gate: false,
        indexer: None,
        recurrence: None,
    };
    let width = (ratio * hidden as f64) as usize;
    let mlp = FeedForward { width, gated, activation: Activation::Gelu, bias };
    let block = Block::sequential(norm, attention, Mlp::Dense(mlp));
    let position = match (alibi, rope) {
        (true, _) => Position::Alibi,
        (_, true) => Position::Rotary,
        _ => Position::Learned(sequence),
    };
    Ok(Model {
        name: request.origin.into(),
        hidden,
        vocab,
        dropout: false,
        dropout_rates: None,
        embedding: Embedding { position, width: None, token_types: 0, norm: None },
        final_norm: Some(norm),
        norm_epsilon: None,
        head: Head { tied: true, bias: false, transform: false, pooler: false },
        blocks: vec![BlockRun { count: layers, block }],
    })
}

fn job(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let batch = tables.count("global_train_batch_size", SEQUENCES)?;
    plan.job.global_batch =
        batch.ok_or_else(|| request.missing("global_train_batch_size", "sequences in a step"))?;
    let of_rank = (plan.job.global_batch / plan.mesh.data).max(1);
    let micro = match tables.is_auto("device_train_microbatch_size") {
        true => None,
        false => tables.count("device_train_microbatch_size", SEQUENCES)?,
    };
    // A device's batch that is smaller than the microbatch is one.
    plan.micro_batch = match micro {
        Some(micro) => micro.min(of_rank),
        None => {
            tables.assume("device_train_microbatch_size", 1);
            1
        }
    };
    plan.job.precision = match tables.text("precision")?.as_deref() {
        Some("fp32") => Precision::Fp32,
        None | Some("amp_bf16") => Precision::Bf16,
        Some("amp_fp16") => Precision::Fp16,
        Some("amp_fp8") => Precision::Fp8,
        Some(other) => {
            return Err(request.bad_text("precision", other, "fp32, amp_bf16, amp_fp16 or amp_fp8"));
        }
    };
    plan.job.optimizer = match tables.text("optimizer.name")?.as_deref() {
        None | Some("decoupled_adamw" | "adamw") => "adamw".into(),
        Some("adam") => "adam".into(),
        Some("decoupled_sgdw" | "sgd") => "sgd".into(),
        Some(other) => {
            return Err(request.bad_text("optimizer.name", other, "decoupled_adamw, adamw, adam or sgd"));
        }
    };
    let limit = tables.number("algorithms.gradient_clipping.clipping_threshold")?;
    plan.job.gradient_clipping = limit.is_some_and(|limit| limit > 0.0);
    Ok(())
}

fn state(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let key = |name: &str| format!("fsdp_config.{name}");
    let strategy = tables.text(&key("sharding_strategy"))?;
    let scheme = match strategy.as_deref() {
        _ if plan.mesh.data == 1 => "none",
        None if tables.get("fsdp_config").is_none_or(Value::is_null) => "none",
        None | Some("FULL_SHARD") => "fsdp",
        Some("SHARD_GRAD_OP") => "zero2-fsdp",
        Some("NO_SHARD") => "none",
        Some("HYBRID_SHARD") => "hsdp",
        Some(other) => {
            let allowed = "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or NO_SHARD";
            return Err(request.bad_text(&key("sharding_strategy"), other, allowed));
        }
    };
    let in_node = plan.cluster.node.gpus.value;
    plan.mesh.shard = (scheme == "hsdp" && in_node < plan.mesh.data).then_some(in_node);
    shard(plan, if scheme == "hsdp" && plan.mesh.shard.is_none() { "fsdp" } else { scheme });
    // PURE reduces gradients in 16 bits.
    let narrow = tables.text(&key("mixed_precision"))?.is_none_or(|kind| kind == "PURE");
    let gradients = if narrow { plan.job.precision.base() } else { Precision::Fp32 };
    let of_stack = plan.stack.gradient_precision(plan.job.precision).base();
    plan.state.gradients = (of_stack != gradients).then_some(gradients);
    let full = tables.flag(&key("activation_checkpointing"))?;
    if tables.flag(&key("activation_cpu_offload"))? {
        plan.offload.activations = Some(Place::Host);
    }
    let choice = if full { Recompute::Full } else { Recompute::None };
    plan.stages = stages(&even(plan.model.layers(), 1), choice);
    Ok(())
}
