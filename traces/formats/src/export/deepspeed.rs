//! The JSON configuration of DeepSpeed.

use super::coverage::Coverage;
use super::fields::gradients;
use super::shared::{blocks_per_stage, bucket, uniform_recompute};
use super::{ExportedFile, Exporter, Request};
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

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.elsewhere("model", "the script makes the model");
        coverage.elsewhere("job.sequence", "the script makes the sequences");
        coverage.elsewhere("job.adapters", "the script makes the model, and its adapters");
        coverage.elsewhere("cluster", "the launcher's hostfile says it");
        coverage.elsewhere("stack", "the script's kernels, and DeepSpeed's overlap");
        let mut table = Map::new();
        batch(plan, coverage, &mut table);
        precision(plan, coverage, &mut table);
        optimizer(plan, coverage, &mut table);
        table.insert("zero_optimization".into(), zero(plan, coverage).into());
        parallel(plan, coverage, &mut table);
        recompute(plan, coverage, &mut table);
        let text = serde_json::to_string_pretty(&table).expect("a table with text keys") + "\n";
        vec![ExportedFile { name: "deepspeed.json".into(), text }]
    }
}

fn batch(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    coverage.express(&["job.global_batch", "micro_batch", "mesh.data", "job.gradient_clipping"]);
    table.insert("train_batch_size".into(), plan.job.global_batch.into());
    table.insert("train_micro_batch_size_per_gpu".into(), plan.micro_batch.into());
    table.insert("gradient_accumulation_steps".into(), plan.microbatches().into());
    let clipping = if plan.job.gradient_clipping { 1.0 } else { 0.0 };
    table.insert("gradient_clipping".into(), clipping.into());
}

fn precision(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    let precision = plan.job.precision;
    coverage.express(&["state.gradients"]);
    let is_16_bit_or_fp32 = matches!(precision, Precision::Bf16 | Precision::Fp16 | Precision::Fp32);
    coverage.express_if(is_16_bit_or_fp32, "job.precision", "bf16, fp16 or fp32");
    match precision.base() {
        Precision::Bf16 => table.insert("bf16".into(), json!({ "enabled": true })),
        Precision::Fp16 => table.insert("fp16".into(), json!({ "enabled": true })),
        _ => None,
    };
    let chosen = gradients(plan);
    let written = match stage(plan) {
        0 => undivided_gradients(precision.base()),
        _ => chosen,
    };
    if matches!(written, Precision::Fp32 | Precision::Fp16 | Precision::Bf16) {
        table.insert("data_types".into(), json!({ "grad_accum_dtype": written.name() }));
    }
    if written != chosen {
        let base = precision.base();
        coverage.omit("state.gradients", format!("without ZeRO gradients of {base} are {written}"));
    } else if !matches!(chosen, Precision::Fp32 | Precision::Fp16 | Precision::Bf16) {
        coverage.omit("state.gradients", "fp32, fp16 or bf16");
    }
    if plan.state.moments != Moments::Fp32 {
        coverage.omit("state.moments", "moments are fp32");
    }
    if plan.state.master_weights != MasterWeights::Fp32 {
        coverage.omit("state.master_weights", "master weights are fp32");
    }
}

fn optimizer(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    coverage.express(&["job.optimizer"]);
    let (kind, parameters) = match plan.job.optimizer.as_str() {
        "adam" => ("Adam", json!({})),
        "lamb" => ("Lamb", json!({})),
        "momentum" => ("SGD", json!({ "momentum": 0.9 })),
        "sgd" => ("SGD", json!({ "momentum": 0.0 })),
        "adamw" => ("AdamW", json!({})),
        "muon" => {
            if stage(plan) == 0 || plan.mesh.tensor > 1 {
                let why =
                    "Muon only with ZeRO, which makes matrices of what it divides, and without tensor ranks";
                coverage.refuse("job.optimizer", why);
            }
            ("Muon", json!({}))
        }
        _ => {
            coverage.omit("job.optimizer", "AdamW takes its place");
            ("AdamW", json!({}))
        }
    };
    table.insert("optimizer".into(), json!({ "type": kind, "params": parameters }));
    if kind != "Adam" && kind != "AdamW" {
        // ZeRO refuses others without it.
        table.insert("zero_allow_untested_optimizer".into(), true.into());
    }
}

/// The precision of gradients without ZeRO, where DeepSpeed refuses others.
fn undivided_gradients(weights: Precision) -> Precision {
    match weights {
        Precision::Fp16 => Precision::Fp16,
        _ => Precision::Fp32,
    }
}

/// The stage of ZeRO.
fn stage(plan: &Plan) -> usize {
    match plan.data_scheme().divides() {
        // Groups of one rank divide nothing.
        _ if plan.mesh.shard() == 1 => 0,
        Divided::Nothing => 0,
        Divided::Optimizer => 1,
        Divided::Gradients => 2,
        Divided::Weights => 3,
    }
}

fn zero(plan: &Plan, coverage: &mut Coverage) -> Map<String, Value> {
    let mut zero = Map::new();
    coverage.express(&["data_sharding", "mesh.shard"]);
    let stage = stage(plan);
    if !["none", "zero1", "zero2", "zero3"].contains(&plan.data_sharding.as_str()) {
        coverage.omit("data_sharding", format!("stage {stage}, which it is read back as"));
    }
    zero.insert("stage".into(), stage.into());
    zero.insert("overlap_comm".into(), plan.stack.overlap_gradient_reduction.into());
    zero.insert("reduce_bucket_size".into(), bucket(plan, coverage).into());
    coverage.express(&["stack.overlap_gradient_reduction", "stack.bucket_parameters"]);
    if plan.mesh.shard() < plan.mesh.weight_copies() {
        // Until version 0.19 `mics_shard_size` said it.
        coverage.omit("mesh.shard", "all data ranks divide the state");
    }
    let device = |place: Place| if place == Place::Nvme { "nvme" } else { "cpu" };
    let offload = &plan.offload;
    if let Some(place) = offload.optimizer {
        coverage.express(&["offload.optimizer", "offload.gradients"]);
        let mut table = Map::from_iter([("device".to_string(), Value::from(device(place)))]);
        if place == Place::Nvme {
            table.insert("nvme_path".into(), "/local_nvme".into());
        }
        table.insert("pin_memory".into(), true.into());
        if offload.optimizer_fraction < 1.0 {
            coverage.express_if(stage == 3, "offload.optimizer_fraction", "a part of it only in stage 3");
            if stage == 3 {
                table.insert("ratio".into(), offload.optimizer_fraction.into());
            }
        }
        zero.insert("offload_optimizer".into(), table.into());
        // From stage 2 on gradients are offloaded with the optimizer if all of it is.
        let follow = if stage >= 2 && (stage < 3 || offload.optimizer_fraction == 1.0) {
            Some(Place::Host)
        } else {
            None
        };
        if offload.gradients != follow {
            coverage.alter("offload.gradients", "they are where the stage has them");
        }
    }
    match offload.parameters {
        Some(place) if stage == 3 => {
            coverage.express(&["offload.parameters"]);
            zero.insert("offload_param".into(), json!({ "device": device(place), "pin_memory": true }));
        }
        _ => coverage.omit("offload.parameters", "only in stage 3"),
    }
    zero
}

fn parallel(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    let mesh = &plan.mesh;
    coverage.express(&["mesh.tensor", "mesh.pipeline", "mesh.context", "stages"]);
    if mesh.tensor > 1 {
        table.insert("tensor_parallel".into(), json!({ "autotp_size": mesh.tensor }));
    }
    if mesh.context > 1 {
        table.insert("sequence_parallel_size".into(), mesh.context.into());
        coverage.express_if(
            plan.context_scheme == "ulysses",
            "context_scheme",
            "sequences are shared by Ulysses",
        );
    }
    let one_by_one = plan.schedule == "1f1b";
    coverage.express_if(
        one_by_one,
        "schedule",
        "stages run by 1F1B, and without them microbatch by microbatch",
    );
    coverage.express_if(
        !plan.sequence_parallel,
        "sequence_parallel",
        "each rank has all of what lies between layers",
    );
    coverage.express_if(
        blocks_per_stage(plan).is_some() && plan.virtual_stages == 1,
        "stages",
        "partition_method of the PipelineModule, in the script",
    );
    if mesh.pipeline > 1 {
        if plan.data_scheme().divides() > Divided::Optimizer {
            coverage.refuse("data_sharding", "stages of a pipeline go with stages 0 and 1 of ZeRO");
        }
        table.insert("pipeline".into(), json!({ "stages": mesh.pipeline, "partition": "uniform" }));
    }
    coverage.elsewhere("mesh.expert", "ep_size of each MoE layer, in the script");
    coverage.elsewhere("experts", "arguments of each MoE layer, in the script");
}

/// The script calls the checkpointing that this describes; one checkpoint a block is full recomputation. All blocks
/// recompute unless none does, so that the exported plan fits wherever this one does.
fn recompute(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    let inputs_leave =
        plan.offload.activations == Some(Place::Host) && plan.offload.activation_blocks.is_none();
    let choice = uniform_recompute(plan);
    if choice == Some(Recompute::None) {
        return;
    }
    let all = choice == Some(Recompute::Full);
    coverage.express_if(all, "stages.recompute", "one checkpoint a block, or none; all blocks whole here");
    coverage.remark(
        "the script must call deepspeed.checkpointing for each block: the section alone recomputes nothing",
    );
    let mut checkpointing =
        json!({ "number_checkpoints": plan.model.layers(), "partition_activations": false });
    if inputs_leave {
        coverage.express(&["offload.activations"]);
        checkpointing["cpu_checkpointing"] = true.into();
    }
    table.insert("activation_checkpointing".into(), checkpointing);
}
