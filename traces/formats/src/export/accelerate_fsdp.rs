//! The configuration of Hugging Face Accelerate with FSDP, as YAML.

use super::coverage::Coverage;
use super::shared::{fsdp_offload, fsdp_shard_ranks, uniform_recompute};
use super::{ExportedFile, Exporter, Request, yaml};
use serde_json::{Map, Value, json};
use trainwright_spec::data::{Divided, Reshard};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;

/// Accelerate.
pub struct AccelerateFsdp;

impl Exporter for AccelerateFsdp {
    fn name(&self) -> &'static str {
        "accelerate-fsdp"
    }

    fn summary(&self) -> &'static str {
        "YAML for accelerate launch --config_file, with FSDP 2"
    }

    fn source(&self) -> &'static str {
        "accelerate 1.15, accelerate.commands.config.config_args.ClusterConfig"
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.elsewhere("model", "the script makes the model");
        coverage.elsewhere("job", "the script's arguments");
        coverage.elsewhere("micro_batch", "the script's data loader");
        coverage.elsewhere("stack", "the script's kernels, and PyTorch's overlap");
        coverage.elsewhere("experts", "the script makes the model");
        for field in ["mesh.pipeline", "schedule", "stages", "virtual_stages"] {
            coverage.express_if(plan.mesh.pipeline == 1, field, "no pipeline: its ranks divide weights here");
        }
        if plan.mesh.pipeline > 1 {
            coverage.refuse("mesh.pipeline", "no pipeline: its ranks divide weights here");
            coverage.alter("mesh.shard", "the ranks of the pipeline divide weights");
            coverage.alter("data_sharding", "the ranks of the pipeline divide weights");
            coverage.alter("mesh.data", "the ranks of the pipeline have sequences of their own");
        }
        coverage.express(&[
            "cluster",
            "mesh.tensor",
            "mesh.data",
            "mesh.context",
            "mesh.shard",
            "job.precision",
        ]);
        let precision = match plan.job.precision.base() {
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
            _ => "no",
        };
        if plan.job.precision != plan.job.precision.base() {
            coverage.omit("job.precision", format!("{precision}; lower ones by a separate recipe"));
        }
        let mut table = Map::new();
        for (key, value) in [
            ("compute_environment", json!("LOCAL_MACHINE")),
            ("debug", json!(false)),
            ("distributed_type", json!("FSDP")),
            ("machine_rank", json!(0)),
            ("main_training_function", json!("main")),
            ("mixed_precision", json!(precision)),
            ("num_machines", json!(plan.cluster.nodes)),
            ("num_processes", json!(plan.mesh.ranks())),
            ("rdzv_backend", json!("c10d")),
            ("same_network", json!(true)),
            ("use_cpu", json!(false)),
        ] {
            table.insert(key.into(), value);
        }
        table.insert("fsdp_config".into(), fsdp(plan, coverage).into());
        table.insert("parallelism_config".into(), parallelism(plan, coverage).into());
        vec![ExportedFile { name: "accelerate.yaml".into(), text: yaml::write(&table) }]
    }
}

fn fsdp(plan: &Plan, coverage: &mut Coverage) -> Map<String, Value> {
    let divides_weights = plan.data_scheme().divides() == Divided::Weights;
    let known = ["fsdp", "zero2-fsdp", "hsdp"].contains(&plan.data_sharding.as_str());
    let why = if divides_weights { "fsdp, which it is read back as" } else { "weights are always divided" };
    coverage.express_if(known, "data_sharding", why);
    if plan.mesh.shard() == 1 && plan.data_sharding != "none" {
        coverage.alter("data_sharding", "groups of one rank divide nothing");
        coverage.alter("mesh.shard", "groups of one rank divide nothing");
    }
    // All blocks recompute unless none does, so that the exported plan fits wherever this one does.
    let choice = uniform_recompute(plan);
    let uniform = matches!(choice, Some(Recompute::Full | Recompute::None));
    coverage.express_if(uniform, "stages.recompute", "all blocks whole or none; all here");
    let checkpoints = choice != Some(Recompute::None);
    let cpu = fsdp_offload(plan, coverage);
    coverage.express_if(plan.reshard() != Reshard::AfterStep, "data.reshard", "within a microbatch");
    let mut table = Map::new();
    for (key, value) in [
        ("fsdp_version", json!(2)),
        ("fsdp_auto_wrap_policy", json!("TRANSFORMER_BASED_WRAP")),
        (
            "fsdp_reshard_after_forward",
            json!(plan.mesh.weight_copies() == 1 || plan.reshard() == Reshard::AfterForward),
        ),
        ("fsdp_offload_params", json!(cpu)),
        ("fsdp_activation_checkpointing", json!(checkpoints)),
        ("fsdp_state_dict_type", json!("SHARDED_STATE_DICT")),
        ("fsdp_cpu_ram_efficient_loading", json!(true)),
    ] {
        table.insert(key.into(), value);
    }
    table
}

fn parallelism(plan: &Plan, coverage: &mut Coverage) -> Map<String, Value> {
    let mesh = &plan.mesh;
    let shard = fsdp_shard_ranks(plan, coverage);
    // No pipeline: otherwise the degrees are fewer than the processes.
    let replicas = mesh.data / shard;
    let shard = shard * mesh.pipeline;
    let mut table = Map::new();
    let mut set = |key: &str, value: Value| {
        table.insert(format!("parallelism_config_{key}"), value);
    };
    set("dp_replicate_size", replicas.into());
    set("dp_shard_size", shard.into());
    set("tp_size", mesh.tensor.into());
    let (context, ulysses) = match plan.context_scheme.as_str() {
        "ulysses" => (1, mesh.context),
        _ => (mesh.context, 1),
    };
    set("cp_size", context.into());
    match plan.context_scheme.as_str() {
        _ if mesh.context == 1 => {}
        "all-gather" => set("cp_comm_strategy", "allgather".into()),
        "ring" => set("cp_comm_strategy", "alltoall".into()),
        "ulysses" => {
            set("sp_size", ulysses.into());
            set("sp_backend", "deepspeed".into());
        }
        _ => coverage.omit("context_scheme", "all-gather, ring or Ulysses"),
    }
    coverage.express_if(
        !plan.sequence_parallel,
        "sequence_parallel",
        "the model's tensor-parallel plan says it",
    );
    coverage.express(&["context_scheme"]);
    table
}
