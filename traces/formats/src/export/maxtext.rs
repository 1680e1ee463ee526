//! The configuration of MaxText, as YAML over its `base.yml`.

use super::coverage::Coverage;
use super::shared::{blocks_per_stage, uniform_recompute};
use super::{ExportedFile, Exporter, yaml};
use serde_json::{Map, Value, json};
use trainwright_spec::data::Divided;
use trainwright_spec::model::{Activation, Mask, Mlp, Position};
use trainwright_spec::optimizer::Moments;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;

/// MaxText.
pub struct MaxText;

/// Models of the catalog that MaxText has a configuration of.
const MODELS: &[(&str, &str)] = &[
    ("deepseek-v2", "deepseek2-236b"),
    ("deepseek-v3", "deepseek3-671b"),
    ("gemma-7b", "gemma-7b"),
    ("gemma-2-27b", "gemma2-27b"),
    ("gpt3-175b", "gpt3-175b"),
    ("llama-2-7b", "llama2-7b"),
    ("llama-2-13b", "llama2-13b"),
    ("llama-2-70b", "llama2-70b"),
    ("llama-3-8b", "llama3-8b"),
    ("llama-3-70b", "llama3-70b"),
    ("llama-3-405b", "llama3-405b"),
    ("mistral-7b", "mistral-7b"),
    ("mixtral-8x7b", "mixtral-8x7b"),
    ("mixtral-8x22b", "mixtral-8x22b"),
    ("qwen3-8b", "qwen3-8b"),
    ("qwen3-235b-a22b", "qwen3-235b-a22b"),
];

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

    fn files(&self, plan: &Plan, coverage: &mut Coverage) -> Vec<ExportedFile> {
        coverage.omit("stack", "the compiler chooses kernels and overlap");
        let mut table = Map::from_iter([("base_config".to_string(), json!("base.yml"))]);
        model(plan, coverage, &mut table);
        mesh(plan, coverage, &mut table);
        batch(plan, coverage, &mut table);
        state(plan, coverage, &mut table);
        vec![ExportedFile { name: "maxtext.yml".into(), text: yaml::write(&table) }]
    }
}

fn model(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    let model = &plan.model;
    coverage.express(&["model"]);
    if let Some((_, name)) = MODELS.iter().find(|(catalog_name, _)| *catalog_name == model.name) {
        table.insert("model_name".into(), json!(name));
        return;
    }
    coverage.omit("model.blocks", "no configuration of that name; the sizes of LLaMA's block");
    let [run] = model.blocks.as_slice() else { return };
    let attention = &run.block.attention;
    let mut set = |key: &str, value: Value| {
        table.insert(key.into(), value);
    };
    set("decoder_block", json!("llama2"));
    set("base_emb_dim", json!(model.hidden));
    set("base_num_decoder_layers", json!(model.layers()));
    set("base_num_query_heads", json!(attention.heads));
    set("base_num_kv_heads", json!(attention.kv_heads));
    set("head_dim", json!(attention.head_dim));
    set("vocab_size", json!(model.vocab));
    set("logits_via_embedding", json!(model.head.tied));
    if let Mask::Window(window) = attention.mask {
        set("attention_type", json!("local_sliding"));
        set("sliding_window_size", json!(window));
    }
    let Mlp::Dense(mlp) = &run.block.mlp else { return };
    let activation = match mlp.activation {
        Activation::Gelu => "gelu",
        Activation::Silu => "silu",
        Activation::Relu | Activation::SquaredRelu => "relu",
    };
    set("base_mlp_dim", json!(mlp.width));
    set("mlp_activations", if mlp.gated { json!([activation, "linear"]) } else { json!([activation]) });
    let rotary = model.embedding.position == Position::Rotary;
    coverage.express_if(rotary, "model.embedding", "positions are rotary");
}

/// Each axis takes as many of the free GPUs of a node as it can, innermost first; the rest of it goes between nodes.
fn mesh(plan: &Plan, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    let mesh = &plan.mesh;
    coverage.express(&["cluster", "mesh.tensor", "mesh.pipeline", "mesh.data", "mesh.context", "mesh.shard"]);
    coverage.express(&["data_sharding", "sequence_parallel"]);
    let divides = plan.data_scheme().divides();
    let weights = divides == Divided::Weights;
    // Context ranks divide the weights as those of the fsdp axis do.
    let shard = if weights { (mesh.shard() / mesh.context).max(1) } else { 1 };
    if divides == Divided::Gradients {
        coverage.omit("data_sharding", "optimizer or weights are divided; here the optimizer");
    }
    if !weights && mesh.shard() < mesh.weight_copies() {
        coverage.omit("mesh.shard", "the whole data axis divides the optimizer");
    }
    table.insert("shard_optimizer_over_data".into(), json!(!weights && divides != Divided::Nothing));
    let expert = mesh.expert.min(shard.max(1));
    coverage.express_if(expert == mesh.expert, "mesh.expert", "experts lie on ranks that divide weights");
    coverage.omit("experts", "the model's configuration");
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
    coverage.express_if(blocks_per_stage(plan).is_some(), "stages", "all stages have as many blocks");
    let looped = plan.schedule == if plan.virtual_stages > 1 { "breadth-first" } else { "gpipe" };
    coverage.express_if(looped, "schedule", "all forward passes come first, in loops over the stages");
    table.insert("num_pipeline_microbatches".into(), json!(plan.microbatches()));
    table.insert("num_layers_per_pipeline_stage".into(), json!(plan.stages[0].0.len()));
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
    match plan.state.moments {
        Moments::Fp32 => {}
        Moments::Bf16 => set("mu_dtype", json!("bfloat16")),
        Moments::Int8 => coverage.omit("state.moments", "float32, or bfloat16 of the first"),
    }
    let optimizer = match plan.job.optimizer.as_str() {
        "adamw" => "adamw",
        "sgd" => "sgd",
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
            coverage.omit("stages.recompute", "one policy for all blocks: everything again, or the least");
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
