//! The configuration of Hugging Face Accelerate with FSDP, as YAML.

use super::sheet::Sheet;
use super::{ExportedFile, Exporter, yaml};
use serde_json::{Map, Value, json};
use trainwright_spec::data::{Divided, Reshard};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

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

    fn files(&self, plan: &Plan, sheet: &mut Sheet) -> Vec<ExportedFile> {
        sheet.leave("model", "the script makes the model");
        sheet.leave("job", "the script's arguments");
        sheet.leave("micro_batch", "the script's data loader");
        sheet.leave("stack", "the script's kernels, and PyTorch's overlap");
        sheet.leave("experts", "the script makes the model");
        for field in ["mesh.pipeline", "schedule", "stages", "virtual_stages"] {
            sheet.say_if(plan.mesh.pipeline == 1, field, "no pipeline");
        }
        sheet.say(&["cluster", "mesh.tensor", "mesh.data", "mesh.context", "mesh.shard", "job.precision"]);
        let precision = match plan.job.precision.base() {
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
            _ => "no",
        };
        if plan.job.precision != plan.job.precision.base() {
            sheet.leave("job.precision", format!("{precision}; lower ones by a recipe of their own"));
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
        table.insert("fsdp_config".into(), fsdp(plan, sheet).into());
        table.insert("parallelism_config".into(), parallelism(plan, sheet).into());
        vec![ExportedFile { name: "accelerate.yaml".into(), text: yaml::write(&table) }]
    }
}

fn fsdp(plan: &Plan, sheet: &mut Sheet) -> Map<String, Value> {
    let own = plan.data_scheme().divides() == Divided::Weights;
    sheet.say_if(own, "data_sharding", "weights are always divided");
    let all_full = plan.stages.iter().flat_map(|stage| &stage.0).all(|choice| *choice == Recompute::Full);
    sheet.say_if(all_full, "stages.recompute", "all blocks or none; none here");
    let offload = &plan.offload;
    let all = [offload.optimizer, offload.gradients, offload.parameters];
    let cpu = all.iter().all(|place| *place == Some(Place::Host)) && offload.optimizer_fraction == 1.0;
    if cpu {
        sheet.say(&["offload.optimizer", "offload.gradients", "offload.parameters"]);
    }
    sheet.leave("offload", "parameters, gradients and optimizer leave for host memory together");
    sheet.say_if(plan.reshard() != Reshard::AfterStep, "data.reshard", "within a microbatch");
    let mut table = Map::new();
    for (key, value) in [
        ("fsdp_version", json!(2)),
        ("fsdp_auto_wrap_policy", json!("TRANSFORMER_BASED_WRAP")),
        ("fsdp_reshard_after_forward", json!(plan.reshard() == Reshard::AfterForward)),
        ("fsdp_offload_params", json!(cpu)),
        ("fsdp_activation_checkpointing", json!(all_full)),
        ("fsdp_state_dict_type", json!("SHARDED_STATE_DICT")),
        ("fsdp_cpu_ram_efficient_loading", json!(true)),
    ] {
        table.insert(key.into(), value);
    }
    table
}

fn parallelism(plan: &Plan, sheet: &mut Sheet) -> Map<String, Value> {
    let mesh = &plan.mesh;
    // Context ranks divide the state too; the sizes here are of the data axis alone.
    let shard = (mesh.shard() / mesh.context).max(1);
    if !mesh.shard().is_multiple_of(mesh.context) {
        sheet.leave("mesh.shard", "the context ranks all divide the state");
    }
    let mut table = Map::new();
    let mut set = |key: &str, value: Value| {
        table.insert(format!("parallelism_config_{key}"), value);
    };
    set("dp_replicate_size", (mesh.data / shard).into());
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
        _ => sheet.leave("context_scheme", "all-gather, ring or Ulysses"),
    }
    let whole = !plan.sequence_parallel;
    sheet.say_if(whole, "sequence_parallel", "the model's tensor-parallel plan says it");
    sheet.say(&["context_scheme"]);
    table
}
