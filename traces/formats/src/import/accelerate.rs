//! The YAML of `accelerate launch --config_file`, with FSDP or DeepSpeed; the script's choices are given beside it.

use super::keys::Keys;
use super::tables::Tables;
use super::{Imported, Importer, Request, even, fuse_shared_attention, offload_undivided, shard, stages};
use serde_json::Value;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{RANKS, SEQUENCES};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// Accelerate.
pub struct Accelerate;

/// The keys that decide the choices of a plan.
const KEYS: Keys = &[
    ("mesh.tensor", "parallelism_config.parallelism_config_tp_size"),
    ("mesh.context", "parallelism_config.parallelism_config_sp_size"),
    ("mesh.context", "parallelism_config.parallelism_config_cp_size"),
    ("mesh.shard", "parallelism_config.parallelism_config_dp_shard_size"),
    ("context_scheme", COMMUNICATION),
    ("stack.attention", "parallelism_config.parallelism_config_cp_size"),
    ("data_sharding", "fsdp_config.fsdp_sharding_strategy"),
    ("data_sharding", "deepspeed_config.zero_stage"),
    ("data_sharding", "fsdp_config.fsdp_reshard_after_forward"),
    ("micro_batch", "micro_batch"),
    ("job.global_batch", "global_batch"),
    ("job.precision", "mixed_precision"),
    ("offload.parameters", "deepspeed_config.offload_param_device"),
    ("offload", "deepspeed_config.offload_optimizer_device"),
    ("offload", "fsdp_config.fsdp_offload_params"),
];

const COMMUNICATION: &str = "parallelism_config.parallelism_config_cp_comm_strategy";

impl Importer for Accelerate {
    fn name(&self) -> &'static str {
        "accelerate-fsdp"
    }

    fn summary(&self) -> &'static str {
        "Accelerate's YAML; --model and --seq, and --set micro_batch=N, say what the script does"
    }

    fn stack(&self) -> &'static str {
        "hugging-face"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let tables = Tables::from_yaml(request)?;
        let (model, sequence) = (request.given_model("Accelerate")?, request.given_sequence("Accelerate")?);
        let mut plan = request.blank(model, sequence);
        mesh(&tables, request, &mut plan)?;
        let kind = tables.text("distributed_type")?.unwrap_or_else(|| "FSDP".into());
        let full = match kind.to_lowercase().as_str() {
            "fsdp" => fsdp(&tables, request, &mut plan)?,
            "deepspeed" => deepspeed(&tables, request, &mut plan)?,
            "multi_gpu" | "no" => {
                shard(&mut plan, "none");
                false
            }
            _ => return Err(request.bad_text("distributed_type", &kind, "FSDP, DEEPSPEED, MULTI_GPU or NO")),
        };
        let choice = if full { Recompute::Full } else { Recompute::None };
        plan.stages = stages(&even(plan.model.layers(), 1), choice);
        job(&tables, request, &mut plan)?;
        if let Some(taken) = offload_undivided(&mut plan) {
            tables.assume("distributed_type", taken);
        }
        Ok(tables.imported(plan, KEYS))
    }
}

fn mesh(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let ranks = |name: &str| {
        let count = tables.count(&format!("parallelism_config.parallelism_config_{name}"), RANKS.or_zero());
        Ok::<usize, SpecError>(count?.filter(|ranks| *ranks > 0).unwrap_or(1))
    };
    let (context, ulysses) = (ranks("cp_size")?, ranks("sp_size")?);
    tables.text("parallelism_config.parallelism_config_sp_backend")?;
    plan.mesh.tensor = ranks("tp_size")?;
    plan.mesh.context = context * ulysses;
    let others = plan.mesh.tensor.saturating_mul(plan.mesh.context);
    plan.mesh.data = request.data_ranks(others, "tp_size x cp_size")?;
    let processes = tables.count("num_processes", RANKS)?;
    let machines = tables.count("num_machines", RANKS)?;
    if let Some(processes) = processes.filter(|count| *count != plan.mesh.ranks()) {
        tables.assume(
            "num_processes",
            format!("{} instead of {processes}, as the cluster has", plan.mesh.ranks()),
        );
    }
    let _ = machines;
    let shards = ranks("dp_shard_size")?;
    let replicas = ranks("dp_replicate_size")?;
    if tables.get("parallelism_config").is_some() && shards.saturating_mul(replicas) != plan.mesh.data {
        let allowed = format!("times {replicas} replicas it must be the {} data ranks", plan.mesh.data);
        return Err(request.bad("parallelism_config.parallelism_config_dp_shard_size", shards, allowed));
    }
    if replicas > 1 {
        plan.mesh.shard = Some(shards * plan.mesh.context);
    }
    if context > 1 {
        fuse_shared_attention(plan);
    }
    let strategy = tables.text(COMMUNICATION)?;
    plan.context_scheme = match strategy.as_deref() {
        _ if ulysses > 1 => "ulysses".into(),
        None if context == 1 => "ring".into(),
        None | Some("allgather") => "all-gather".into(),
        Some("alltoall") => "ring".into(),
        Some(other) => return Err(request.bad_text(COMMUNICATION, other, "allgather or alltoall")),
    };
    Ok(())
}

/// Whether all blocks are recomputed.
fn fsdp(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<bool, SpecError> {
    let key = |name: &str| format!("fsdp_config.fsdp_{name}");
    let first = tables.get(&key("version")).is_none_or(|version| version != 2);
    let strategy = tables.get(&key("sharding_strategy")).cloned();
    let reshard = tables.get(&key("reshard_after_forward")).cloned();
    let word = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_uppercase);
    let (strategy, reshard) = (strategy.map(word), reshard.map(word));
    let mut scheme = match strategy.or(reshard).as_deref() {
        None | Some("FULL_SHARD" | "1" | "TRUE" | "true") => "fsdp",
        Some("SHARD_GRAD_OP" | "2" | "FALSE" | "false") => "zero2-fsdp",
        Some("NO_SHARD" | "3") => "none",
        Some("HYBRID_SHARD" | "4") => "hsdp",
        Some(other) => {
            let allowed = "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD or HYBRID_SHARD";
            return Err(request.bad_text(&key("sharding_strategy"), other, allowed));
        }
    };
    if scheme == "hsdp" && first {
        // A copy in each node.
        plan.mesh.shard =
            Some(plan.cluster.node.gpus.value).filter(|ranks| *ranks < plan.mesh.weight_copies());
    }
    if plan.mesh.shard.is_some() {
        scheme = "hsdp";
    } else if scheme == "hsdp" || plan.mesh.weight_copies() == 1 {
        scheme = if plan.mesh.weight_copies() == 1 { "none" } else { "fsdp" };
    }
    shard(plan, scheme);
    if tables.flag(&key("offload_params"))? {
        let offload = &mut plan.offload;
        offload.optimizer = Some(Place::Host);
        offload.gradients = Some(Place::Host);
        offload.parameters = Some(Place::Host);
    }
    for name in [
        "auto_wrap_policy",
        "state_dict_type",
        "cpu_ram_efficient_loading",
        "sync_module_states",
        "use_orig_params",
        "backward_prefetch",
        "forward_prefetch",
        "transformer_layer_cls_to_wrap",
    ] {
        tables.get(&key(name));
    }
    tables.flag(&key("activation_checkpointing"))
}

fn deepspeed(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<bool, SpecError> {
    let key = |name: &str| format!("deepspeed_config.{name}");
    if let Some(file) = tables.text(&key("deepspeed_config_file"))? {
        let allowed = "import that file with --from deepspeed";
        return Err(request.bad_text(&key("deepspeed_config_file"), &file, allowed));
    }
    let stage = tables.zero_stage(&key("zero_stage"))?.unwrap_or(2);
    let scheme = match stage {
        0 => "none",
        1 => "zero1",
        2 => "zero2",
        _ => "zero3",
    };
    shard(plan, scheme);
    let place = |name: &str| -> Result<Option<Place>, SpecError> {
        match tables.text(&key(name))?.as_deref() {
            None | Some("none") => Ok(None),
            Some("cpu") => Ok(Some(Place::Host)),
            Some("nvme") => Ok(Some(Place::Nvme)),
            Some(other) => Err(request.bad_text(&key(name), other, "none, cpu or nvme")),
        }
    };
    plan.offload.optimizer = place("offload_optimizer_device")?;
    plan.offload.parameters = place("offload_param_device")?;
    if plan.offload.optimizer.is_some() && stage >= 2 {
        plan.offload.gradients = Some(Place::Host);
    }
    Ok(false)
}

fn job(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    plan.job.precision = match tables.text("mixed_precision")?.as_deref() {
        None | Some("no") => Precision::Fp32,
        Some("bf16") => Precision::Bf16,
        Some("fp16") => Precision::Fp16,
        Some("fp8") => Precision::Fp8,
        Some(other) => return Err(request.bad_text("mixed_precision", other, "no, fp16, bf16 or fp8")),
    };
    // Mixed precision keeps weights in 32 bits for the update.
    plan.stack.pure_16_bits = false;
    let micro = tables.count("micro_batch", SEQUENCES)?;
    if micro.is_none() {
        tables.assume("micro_batch", 1);
    }
    plan.micro_batch = micro.unwrap_or(1);
    let steps = ["deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"];
    let mut accumulated = 1;
    for key in steps {
        accumulated = tables.count(key, SEQUENCES)?.unwrap_or(accumulated);
    }
    let least = plan.micro_batch.saturating_mul(plan.mesh.data).saturating_mul(accumulated);
    let batch = tables.count("global_batch", SEQUENCES)?;
    if batch.is_none() {
        tables.assume("global_batch", least);
    }
    plan.job.global_batch = batch.unwrap_or(least);
    let limit = tables.number("deepspeed_config.gradient_clipping")?;
    plan.job.gradient_clipping = limit.is_none_or(|limit| limit > 0.0);
    for key in [
        "compute_environment",
        "debug",
        "downcast_bf16",
        "machine_rank",
        "main_training_function",
        "rdzv_backend",
        "same_network",
        "use_cpu",
    ] {
        tables.get(key);
    }
    Ok(())
}
