//! The configuration of MaxText, as YAML over its `base.yml`.

pub(crate) mod model;

use super::coverage::Coverage;
use super::fields::has_experts;
use super::shared::{blocks_per_stage, uniform_recompute};
use super::{ExportedFile, Exporter, Request, yaml};
use serde_json::{Map, Value, json};
use trainwright_spec::data::Divided;
use trainwright_spec::optimizer::Moments;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// MaxText.
pub struct MaxText;

impl Exporter for MaxText {
    fn name(&self) -> &'static str {
        "maxtext"
    }

    fn summary(&self) -> &'static str {
        "YAML over MaxText's base.yml: python -m maxtext.trainers.pre_train.train FILE"
    }

    fn source(&self) -> &'static str {
        "MaxText 0.2.5, maxtext/configs/base.yml"
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.elsewhere("stack", "the compiler chooses kernels and overlap");
        let mut table = Map::from_iter([("base_config".to_string(), json!("base.yml"))]);
        model::settings(request, coverage, &mut table);
        mesh(plan, coverage, &mut table);
        batch(plan, coverage, &mut table);
        state(plan, coverage, &mut table);
        vec![ExportedFile { name: "maxtext.yml".into(), text: yaml::write(&table) }]
    }
}

/// Each axis takes as many of the free GPUs of a node as it can, innermost first; the rest of it goes between nodes.
fn mesh(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    let mesh = &plan.mesh;
    coverage.express(&["cluster", "mesh.tensor", "mesh.pipeline", "mesh.data", "mesh.context", "mesh.shard"]);
    coverage.express(&["data_sharding", "sequence_parallel"]);
    let divides = plan.data_scheme().divides();
    let weights = divides == Divided::Weights;
    // Context ranks divide the weights as those of the fsdp axis do, and so do expert ranks with all that is no expert.
    let divided = if weights { (mesh.shard() / mesh.context).max(1) } else { 1 };
    let expert = if mesh.data.is_multiple_of(mesh.expert) { mesh.expert } else { 1 };
    let shard = match divided.is_multiple_of(expert) {
        true => divided,
        false if divided < expert => expert,
        false => mesh.data,
    };
    if expert != mesh.expert {
        coverage.refuse("mesh.expert", "the axis of experts is one of the data ranks");
    }
    coverage.express(&["mesh.expert"]);
    if shard != divided {
        coverage
            .alter("data_sharding", "the expert ranks divide all weights, and each has sequences of its own");
        coverage.alter("mesh.shard", "the expert ranks divide all weights");
    }
    if !["none", "zero1", "fsdp", "hsdp"].contains(&plan.data_sharding.as_str()) {
        let what = if weights { "weights" } else { "the optimizer, if it is divided" };
        coverage.omit("data_sharding", format!("optimizer or weights are divided; here {what}"));
    }
    if !weights && mesh.shard() < mesh.weight_copies() {
        coverage.omit("mesh.shard", "the whole data axis divides the optimizer");
    }
    if mesh.shard() == 1 && plan.data_sharding != "none" {
        coverage.omit("data_sharding", "groups of one rank divide nothing");
        coverage.alter("mesh.shard", "groups of one rank divide nothing");
    }
    if !weights && mesh.context > 1 {
        coverage.alter("data_sharding", "context ranks always divide the weights");
        coverage.alter("mesh.shard", "context ranks always divide the weights");
    }
    if weights && !mesh.shard().is_multiple_of(mesh.context) {
        coverage.omit("mesh.shard", "the context ranks all divide the weights");
    }
    table.insert(
        "shard_optimizer_over_data".into(),
        json!(
            !weights
                && divides != Divided::Nothing
                && mesh.context == 1
                && (expert == 1 || shard < mesh.data)
        ),
    );
    coverage.elsewhere("experts", "the model's configuration");
    let tensor = if plan.sequence_parallel { "tensor_sequence" } else { "tensor" };
    let axes = [
        (tensor, mesh.tensor),
        ("context", mesh.context),
        ("expert", expert),
        ("fsdp", shard / expert),
        ("data", mesh.data / shard),
        ("pipeline", mesh.pipeline),
    ];
    let mut left = plan.cluster.node.gpus.value;
    for (axis, degree) in axes {
        let inside = common_divisor(left, degree);
        left /= inside;
        table.insert(format!("ici_{axis}_parallelism"), json!(inside));
        table.insert(format!("dcn_{axis}_parallelism"), json!(degree / inside));
    }
    if mesh.context > 1 {
        let strategy = match plan.context_scheme.as_str() {
            "ring" => "ring",
            "ulysses" => "ulysses",
            "all-gather" => "all_gather",
            _ => {
                coverage.omit("context_scheme", "all-gather, ring or Ulysses");
                "all_gather"
            }
        };
        table.insert("context_parallel_strategy".into(), json!(strategy));
    }
    coverage.express(&["context_scheme"]);
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

fn batch(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    coverage.express(&["job.sequence", "job.global_batch", "micro_batch", "virtual_stages", "stages"]);
    let ranks = plan.mesh.ranks() as f64;
    table.insert("max_target_length".into(), json!(plan.job.sequence));
    let (batch, steps) = match plan.mesh.pipeline {
        1 => (plan.mesh.data * plan.micro_batch, plan.microbatches()),
        _ => (plan.job.global_batch, 1),
    };
    table.insert("per_device_batch_size".into(), json!(batch as f64 / ranks));
    table.insert("gradient_accumulation_steps".into(), json!(steps));
    if plan.mesh.pipeline == 1 {
        coverage.express_if(plan.schedule == "1f1b", "schedule", "microbatches follow each other");
        return;
    }
    let looped = plan.schedule == if plan.virtual_stages > 1 { "breadth-first" } else { "gpipe" };
    coverage.express_if(looped, "schedule", "all forward passes come first, in loops over the stages");
    table.insert("num_pipeline_microbatches".into(), json!(plan.microbatches()));
    if !plan.microbatches().is_multiple_of(plan.mesh.pipeline) {
        coverage.refuse("schedule", "the microbatches are a multiple of the stages");
    }
    // The layers are the product of ranks, blocks of a stage and repeats; those left over run beside the pipeline.
    let stages = plan.stages.len();
    let layers = plan.model.layers();
    let of_stage = layers / stages;
    if blocks_per_stage(plan).is_none() {
        coverage.omit("stages", format!("{of_stage} blocks in every stage, the rest without a pipeline"));
    }
    if of_stage == 0 || plan.model.blocks.iter().any(|run| run.block != plan.model.blocks[0].block) {
        coverage.refuse("stages", "a pipeline of equal blocks");
    }
    if of_stage * stages < layers {
        table.insert("pipeline_parallel_layers".into(), json!(of_stage * stages));
    }
    table.insert("num_layers_per_pipeline_stage".into(), json!(of_stage.max(1)));
    table.insert("num_pipeline_repeats".into(), json!(plan.virtual_stages));
}

fn state(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    coverage.express(&["job.precision", "job.optimizer", "job.gradient_clipping", "state.moments"]);
    let mut set = |key: &str, value: Value| {
        table.insert(key.into(), value);
    };
    let base = plan.job.precision.base();
    set("dtype", json!(if base == Precision::Bf16 { "bfloat16" } else { "float32" }));
    set("weight_dtype", json!("float32"));
    match plan.job.precision {
        Precision::Fp8 => set("quantization", json!("fp8")),
        Precision::Int8 => set("quantization", json!("int8")),
        Precision::Bf16 | Precision::Fp32 => {}
        _ => coverage.omit("job.precision", "bfloat16 or float32, and fp8 or int8 products"),
    }
    // XLA reduces the gradients of 16-bit copies in any case. The optimizer gets them in 32 bits unless the plan says otherwise.
    let narrow = plan.state.gradients.is_some_and(|precision| precision.base() == Precision::Bf16);
    set("grad_dtype", json!(if narrow { "bfloat16" } else { "float32" }));
    coverage.express(&["state.gradients"]);
    if !narrow && super::fields::gradients(plan) != Precision::Fp32 {
        coverage.omit("state.gradients", "the optimizer gets them in 32 bits");
    }
    match plan.state.moments {
        Moments::Fp32 => {}
        Moments::Bf16 => set("mu_dtype", json!("bfloat16")),
        Moments::Int8 => coverage.omit("state.moments", "float32, or bfloat16 of the first"),
    }
    let optimizer = match plan.job.optimizer.as_str() {
        "adamw" => "adamw",
        "sgd" => "sgd",
        // It knows which weights of these are matrices.
        "muon" if !has_experts(plan) => "muon",
        _ => {
            coverage.omit("job.optimizer", "adamw takes its place");
            "adamw"
        }
    };
    set("opt_type", json!(optimizer));
    set("gradient_clipping_threshold", json!(if plan.job.gradient_clipping { 1.0 } else { 0.0 }));
    coverage.express(&["stages.recompute"]);
    let policy = match uniform_recompute(plan) {
        Some(Recompute::Full) => "full",
        Some(Recompute::None) => "minimal_with_context",
        _ => {
            coverage.omit(
                "stages.recompute",
                "one policy for all blocks: everything again, or the least; everything here",
            );
            "full"
        }
    };
    set("remat_policy", json!(policy));
    let offload = &plan.offload;
    if offload.optimizer == Some(Place::Host) {
        coverage.express(&["offload.optimizer"]);
        set("optimizer_memory_host_offload", json!(true));
    }
    if offload.parameters == Some(Place::Host) {
        coverage.express(&["offload.parameters"]);
        set("parameter_memory_host_offload", json!(true));
    }
}
