//! The YAML of `accelerate launch --config_file`, with FSDP or DeepSpeed; the script's choices are given beside it.

use super::tables::Tables;
use super::{Imported, Importer, Request, even, offload_undivided, shard, stages};
use serde_json::Value;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{RANKS, SEQUENCES};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// Accelerate.
pub struct Accelerate;

impl Importer for Accelerate {
    fn name(&self) -> &'static str {
        "accelerate-fsdp"
    }

    fn summary(&self) -> &'static str {
        "Accelerate's YAML; --model and --seq, and --set micro_batch=N, say what the script does"
    }

    fn stack(&self) -> &'static str {
        "pytorch-eager"
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
        Ok(Imported { plan, unread: tables.unread(), assumed: tables.assumed() })
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
    let strategy = tables.text("parallelism_config.parallelism_config_cp_comm_strategy")?;
    plan.context_scheme = match (ulysses > 1, strategy.as_deref()) {
        (true, _) => "ulysses".into(),
        (_, Some("alltoall")) => "ring".into(),
        _ if context > 1 => "all-gather".into(),
        _ => "ring".into(),
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
    let stage = tables.count(&key("zero_stage"), RANKS.or_zero())?.unwrap_or(2);
    let scheme = match stage {
        0 => "none",
        1 => "zero1",
        2 => "zero2",
        3 => "zero3",
        other => return Err(request.bad(&key("zero_stage"), other, "0, 1, 2 or 3")),
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
