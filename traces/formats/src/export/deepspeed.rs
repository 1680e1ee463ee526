//! The JSON configuration of DeepSpeed.

use super::fields::gradients;
use super::sheet::Sheet;
use super::{ExportedFile, Exporter};
use serde_json::{Map, Value, json};
use trainwright_spec::data::Divided;
use trainwright_spec::optimizer::{MasterWeights, Moments};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// DeepSpeed.
pub struct DeepSpeed;

impl Exporter for DeepSpeed {
    fn name(&self) -> &'static str {
        "deepspeed"
    }

    fn summary(&self) -> &'static str {
        "DeepSpeed's JSON configuration"
    }

    fn source(&self) -> &'static str {
        "DeepSpeed 0.19.8, deepspeed.runtime.config.DeepSpeedConfig and its documentation"
    }

    fn comment(&self) -> Option<&'static str> {
        None
    }

    fn files(&self, plan: &Plan, sheet: &mut Sheet) -> Vec<ExportedFile> {
        sheet.leave("model", "the script makes the model");
        sheet.leave("job.sequence", "the script makes the sequences");
        sheet.leave("cluster", "the launcher's hostfile says it");
        sheet.leave("stack", "the script's kernels, and DeepSpeed's own overlap");
        let mut table = Map::new();
        batch(plan, sheet, &mut table);
        precision(plan, sheet, &mut table);
        optimizer(plan, sheet, &mut table);
        table.insert("zero_optimization".into(), zero(plan, sheet).into());
        parallel(plan, sheet, &mut table);
        recompute(plan, sheet, &mut table);
        let text = serde_json::to_string_pretty(&table).expect("a table with text keys") + "\n";
        vec![ExportedFile { name: "deepspeed.json".into(), text }]
    }
}

fn batch(plan: &Plan, sheet: &mut Sheet, table: &mut Map<String, Value>) {
    sheet.say(&["job.global_batch", "micro_batch", "mesh.data", "job.gradient_clipping"]);
    table.insert("train_batch_size".into(), plan.job.global_batch.into());
    table.insert("train_micro_batch_size_per_gpu".into(), plan.micro_batch.into());
    table.insert("gradient_accumulation_steps".into(), plan.microbatches().into());
    let clipping = if plan.job.gradient_clipping { 1.0 } else { 0.0 };
    table.insert("gradient_clipping".into(), clipping.into());
}

fn precision(plan: &Plan, sheet: &mut Sheet, table: &mut Map<String, Value>) {
    let precision = plan.job.precision;
    sheet.say(&["state.gradients"]);
    let own = matches!(precision, Precision::Bf16 | Precision::Fp16 | Precision::Fp32);
    sheet.say_if(own, "job.precision", "bf16, fp16 or fp32; set by other means");
    match precision.base() {
        Precision::Bf16 => table.insert("bf16".into(), json!({ "enabled": true })),
        Precision::Fp16 => table.insert("fp16".into(), json!({ "enabled": true })),
        _ => None,
    };
    let gradients = gradients(plan);
    if matches!(gradients, Precision::Fp32 | Precision::Fp16 | Precision::Bf16) {
        table.insert("data_types".into(), json!({ "grad_accum_dtype": gradients.name() }));
    } else {
        sheet.leave("state.gradients", "fp32, fp16 or bf16");
    }
    if plan.state.moments != Moments::Fp32 {
        sheet.leave("state.moments", "moments are fp32");
    }
    if plan.state.master_weights != MasterWeights::Fp32 {
        sheet.leave("state.master_weights", "master weights are fp32");
    }
}

fn optimizer(plan: &Plan, sheet: &mut Sheet, table: &mut Map<String, Value>) {
    sheet.say(&["job.optimizer"]);
    let (kind, parameters) = match plan.job.optimizer.as_str() {
        "adam" => ("Adam", json!({})),
        "lamb" => ("Lamb", json!({})),
        "momentum" => ("SGD", json!({ "momentum": 0.9 })),
        "sgd" => ("SGD", json!({ "momentum": 0.0 })),
        "adamw" => ("AdamW", json!({})),
        _ => {
            sheet.leave("job.optimizer", "AdamW takes its place");
            ("AdamW", json!({}))
        }
    };
    table.insert("optimizer".into(), json!({ "type": kind, "params": parameters }));
}

fn zero(plan: &Plan, sheet: &mut Sheet) -> Map<String, Value> {
    let mut zero = Map::new();
    sheet.say(&["data_sharding", "mesh.shard"]);
    let stage = match plan.data_scheme().divides() {
        Divided::Nothing => 0,
        Divided::Optimizer => 1,
        Divided::Gradients => 2,
        Divided::Weights => 3,
    };
    let own = ["none", "zero1", "zero2", "zero3"].contains(&plan.data_sharding.as_str());
    if !own {
        sheet.leave("data_sharding", format!("stage {stage}, which it is read back as"));
    }
    zero.insert("stage".into(), stage.into());
    zero.insert("overlap_comm".into(), plan.stack.overlap_gradient_reduction.into());
    zero.insert("reduce_bucket_size".into(), plan.bucket_parameters().into());
    sheet.say(&["stack.overlap_gradient_reduction", "stack.bucket_parameters"]);
    if plan.mesh.shard() < plan.mesh.weight_copies() {
        match stage {
            3 => zero.insert("mics_shard_size".into(), plan.mesh.shard().into()).map_or((), drop),
            _ => sheet.leave("mesh.shard", "groups that divide the state are of stage 3"),
        }
    }
    let device = |place: Place| if place == Place::Nvme { "nvme" } else { "cpu" };
    let offload = &plan.offload;
    if let Some(place) = offload.optimizer {
        sheet.say(&["offload.optimizer", "offload.gradients"]);
        let mut own = Map::from_iter([("device".to_string(), Value::from(device(place)))]);
        if place == Place::Nvme {
            own.insert("nvme_path".into(), "/local_nvme".into());
        }
        own.insert("pin_memory".into(), true.into());
        if offload.optimizer_fraction < 1.0 {
            sheet.say_if(stage == 3, "offload.optimizer_fraction", "a part of it only in stage 3");
            if stage == 3 {
                own.insert("ratio".into(), offload.optimizer_fraction.into());
            }
        }
        zero.insert("offload_optimizer".into(), own.into());
        // From stage 2 on gradients follow an optimizer that leaves whole, else they stay.
        let follow = if stage >= 2 && (stage < 3 || offload.optimizer_fraction == 1.0) {
            Some(Place::Host)
        } else {
            None
        };
        if offload.gradients != follow {
            sheet.alter("offload.gradients", "they are where the stage has them");
        }
    }
    match offload.parameters {
        Some(place) if stage == 3 => {
            sheet.say(&["offload.parameters"]);
            zero.insert("offload_param".into(), json!({ "device": device(place), "pin_memory": true }));
        }
        _ => sheet.leave("offload.parameters", "only in stage 3"),
    }
    zero
}

fn parallel(plan: &Plan, sheet: &mut Sheet, table: &mut Map<String, Value>) {
    let mesh = &plan.mesh;
    sheet.say(&["mesh.tensor", "mesh.pipeline", "mesh.context", "stages"]);
    if mesh.tensor > 1 {
        table.insert("tensor_parallel".into(), json!({ "autotp_size": mesh.tensor }));
    }
    if mesh.context > 1 {
        table.insert("sequence_parallel_size".into(), mesh.context.into());
        sheet.say_if(plan.context_scheme == "ulysses", "context_scheme", "sequences are shared by Ulysses");
    }
    let one_by_one = plan.schedule == "1f1b";
    sheet.say_if(one_by_one, "schedule", "stages run by 1F1B, and without them microbatch by microbatch");
    let counts: Vec<usize> = plan.stages.iter().map(|stage| stage.0.len()).collect();
    let even = counts.iter().all(|count| *count == counts[0]);
    let whole = !plan.sequence_parallel;
    sheet.say_if(whole, "sequence_parallel", "each rank has all of what lies between layers");
    sheet.say_if(
        even && plan.virtual_stages == 1,
        "stages",
        "partition_method of the PipelineModule, in the script",
    );
    if mesh.pipeline > 1 {
        table.insert("pipeline".into(), json!({ "stages": mesh.pipeline, "partition": "uniform" }));
    }
    sheet.leave("mesh.expert", "ep_size of each MoE layer, in the script");
    sheet.leave("experts", "arguments of each MoE layer, in the script");
}

/// The script calls the checkpointing that this describes: one checkpoint a block is what the planner calls full.
fn recompute(plan: &Plan, sheet: &mut Sheet, table: &mut Map<String, Value>) {
    let mut choices = plan.stages.iter().flat_map(|stage| &stage.0);
    let inputs_leave =
        plan.offload.activations == Some(Place::Host) && plan.offload.activation_blocks.is_none();
    if choices.clone().all(|choice| *choice == Recompute::Full) {
        sheet.say(&["stages.recompute"]);
        let mut own = json!({ "number_checkpoints": plan.model.layers(), "partition_activations": false });
        if inputs_leave {
            sheet.say(&["offload.activations"]);
            own["cpu_checkpointing"] = true.into();
        }
        table.insert("activation_checkpointing".into(), own);
    } else if choices.any(|choice| *choice != Recompute::None) {
        sheet.leave("stages.recompute", "the script says which blocks; here none");
    }
}
