//! A plan as Megatron's settings: the arguments of Megatron-LM, each with the field of Megatron-Core's configuration
//! that it sets. Each tool that is built upon Megatron-Core chooses which of them it writes, and how.

mod details;
mod model;
pub(crate) mod stages;
mod state;

use super::Request;
use super::coverage::Coverage;
use super::fields::{has_experts, overlap_pipeline};
use super::shared::{bucket, dispatch_within_node};
use serde_json::Value;
use trainwright_spec::mesh::RankOrder;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::{AttentionKernel, Fusion, PipelineOverlap, Stack};

/// An argument of Megatron-LM.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    /// With its dashes.
    pub flag: &'static str,
    /// What follows it.
    pub values: Vec<String>,
    /// The configuration's field with its section, `model.sequence_parallel`, and its value; `None` if the flag sets no
    /// field or several.
    pub field: Option<(&'static str, Value)>,
}

/// The arguments of a plan, in order.
#[derive(Debug, Default)]
pub struct Arguments(pub Vec<Argument>);

impl Arguments {
    fn push(&mut self, flag: &'static str, values: &[Value], field: &'static str, setting: Value) {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let field = (!field.is_empty()).then_some((field, setting));
        self.0.push(Argument { flag, values: values.iter().map(text).collect(), field });
    }

    /// A flag with a value.
    fn set(&mut self, flag: &'static str, value: impl Into<Value>, field: &'static str) {
        let value = value.into();
        self.push(flag, std::slice::from_ref(&value), field, value.clone());
    }

    /// A flag with several values.
    fn several(&mut self, flag: &'static str, values: Vec<Value>, field: &'static str) {
        self.push(flag, &values.clone(), field, Value::Array(values));
    }

    /// A flag that stands for true.
    fn on(&mut self, flag: &'static str, field: &'static str) {
        self.push(flag, &[], field, Value::Bool(true));
    }

    /// A flag that stands for false.
    fn off(&mut self, flag: &'static str, field: &'static str) {
        self.push(flag, &[], field, Value::Bool(false));
    }
}

/// The stack that behaves as Megatron-Core does by default.
pub fn defaults() -> Stack {
    Stack::from_name("megatron-core").expect("the catalog has it")
}

/// The arguments of a plan.
pub fn arguments(request: &Request, coverage: &mut Coverage) -> Arguments {
    let mut arguments = choices(request, coverage);
    model::arguments(request, coverage, &mut arguments);
    arguments
}

/// The arguments of a plan without those of its model.
pub fn choices(request: &Request, coverage: &mut Coverage) -> Arguments {
    let plan = request.plan;
    let mut arguments = Arguments::default();
    mesh(plan, coverage, &mut arguments);
    stages::arguments(plan, request.details().further_predictions, coverage, &mut arguments);
    job(plan, coverage, &mut arguments);
    experts(plan, coverage, &mut arguments);
    state::arguments(plan, coverage, &mut arguments);
    stack(request, coverage, &mut arguments);
    arguments
}

fn mesh(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    let mesh = &plan.mesh;
    coverage.express(&["mesh.tensor", "mesh.pipeline", "mesh.data", "mesh.context", "mesh.expert"]);
    coverage.express(&["mesh.expert_tensor", "sequence_parallel", "context_scheme", "mesh.context_inner"]);
    out.set("--tensor-model-parallel-size", mesh.tensor, "model.tensor_model_parallel_size");
    if plan.sequence_parallel && mesh.tensor > 1 {
        out.on("--sequence-parallel", "model.sequence_parallel");
    }
    out.set("--pipeline-model-parallel-size", mesh.pipeline, "model.pipeline_model_parallel_size");
    if mesh.expert > 1 {
        out.set("--expert-model-parallel-size", mesh.expert, "model.expert_model_parallel_size");
    }
    if has_experts(plan) && mesh.expert_tensor() != mesh.tensor {
        out.set("--expert-tensor-parallel-size", mesh.expert_tensor(), "model.expert_tensor_parallel_size");
    }
    match mesh.order {
        RankOrder::DataLast if mesh.context * mesh.expert == 1 => {
            coverage.express(&["mesh.order"]);
            out.on("--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping");
        }
        RankOrder::DataLast => coverage.omit("mesh.order", "only without context and expert ranks"),
        RankOrder::PipelineLast => {}
    }
    if mesh.context == 1 {
        return;
    }
    out.set("--context-parallel-size", mesh.context, "model.context_parallel_size");
    let kind = match plan.context_scheme.as_str() {
        "ring" => "p2p",
        // As Transformer Engine has it, which gets it unchanged; the help of Megatron-LM writes `allgather`.
        "all-gather" => "all_gather",
        "ulysses" => "a2a",
        "hybrid" => "a2a+p2p",
        other => {
            coverage.omit("context_scheme", format!("no such exchange; p2p, not {other}"));
            "p2p"
        }
    };
    out.set("--cp-comm-type", kind, "model.cp_comm_type");
    if plan.context_scheme == "hybrid" {
        let sizes = vec![mesh.context_inner.into(), (mesh.context / mesh.context_inner).into()];
        out.several(
            "--hierarchical-context-parallel-sizes",
            sizes,
            "model.hierarchical_context_parallel_sizes",
        );
    }
}

fn job(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    let job = &plan.job;
    coverage.express(&[
        "job.sequence",
        "job.global_batch",
        "micro_batch",
        "job.precision",
        "job.gradient_clipping",
    ]);
    out.set("--micro-batch-size", plan.micro_batch, "train.micro_batch_size");
    out.set("--global-batch-size", job.global_batch, "train.global_batch_size");
    out.set("--seq-length", job.sequence, "model.seq_length");
    match job.precision.base() {
        Precision::Bf16 => out.on("--bf16", "model.bf16"),
        Precision::Fp16 => out.on("--fp16", "model.fp16"),
        _ => {}
    }
    let recipe = match job.precision {
        Precision::Fp8 => Some("delayed"),
        Precision::Fp8Block => Some("blockwise"),
        Precision::MxFp8 => Some("mxfp8"),
        Precision::NvFp4 => {
            out.set("--fp4-format", "e2m1", "model.fp4");
            out.set("--fp4-recipe", "nvfp4", "model.fp4_recipe");
            None
        }
        Precision::Int8 => {
            coverage.omit("job.precision", "no 8-bit integers; fp16");
            None
        }
        Precision::Tf32 => {
            coverage.omit("job.precision", "set NVIDIA_TF32_OVERRIDE=1 in the environment");
            None
        }
        _ => None,
    };
    if let Some(recipe) = recipe {
        out.set("--fp8-format", "hybrid", "model.fp8");
        out.set("--fp8-recipe", recipe, "model.fp8_recipe");
    }
    let optimizer = match job.optimizer.as_str() {
        "momentum" | "sgd" => "sgd",
        "muon" => "muon",
        _ => "adam",
    };
    let known = matches!(job.optimizer.as_str(), "adamw" | "momentum" | "sgd" | "muon");
    coverage.express_if(known, "job.optimizer", "adam with decoupled weight decay takes its place");
    out.set("--optimizer", optimizer, "optimizer.optimizer");
    if optimizer == "sgd" {
        let momentum = if job.optimizer == "momentum" { 0.9 } else { 0.0 };
        out.set("--sgd-momentum", momentum, "optimizer.sgd_momentum");
    }
    if optimizer == "muon" && plan.mesh.tensor > 1 {
        // Whole matrices, not the part of each tensor rank.
        out.set("--muon-tp-mode", "duplicated", "optimizer.muon_tp_mode");
    }
    out.set("--clip-grad", if job.gradient_clipping { 1.0 } else { 0.0 }, "optimizer.clip_grad");
}

fn experts(plan: &Plan, coverage: &mut Coverage, out: &mut Arguments) {
    if !has_experts(plan) {
        return;
    }
    coverage.express(&["experts.dispatcher", "experts.capacity_factor"]);
    if plan.mesh.tensor > 1 && !plan.sequence_parallel {
        coverage.refuse("sequence_parallel", "experts train on several tensor ranks only with it");
    }
    let kind = match plan.experts.dispatcher.as_str() {
        "all-gather" => "allgather",
        "by-node" | "by-rank" | "forwarded" => "flex",
        _ => "alltoall",
    };
    out.set("--moe-token-dispatcher-type", kind, "model.moe_token_dispatcher_type");
    if kind == "flex" {
        out.set("--moe-flex-dispatcher-backend", "deepep", "model.moe_flex_dispatcher_backend");
    }
    dispatch_within_node(plan, coverage);
    if let Some(factor) = plan.experts.capacity_factor {
        out.set("--moe-expert-capacity-factor", factor, "model.moe_expert_capacity_factor");
    }
    coverage.omit("experts.load", "the router decides");
    let gates = plan.stack.expert_gates == defaults().expert_gates;
    coverage.express_if(gates, "stack.expert_gates", "the release decides");
}

fn stack(request: &Request, coverage: &mut Coverage, out: &mut Arguments) {
    let plan = request.plan;
    let (stack, defaults) = (&plan.stack, defaults());
    coverage.express(&[
        "stack.fused_elementwise",
        "stack.cross_entropy",
        "stack.fused_gradient_accumulation",
    ]);
    coverage.express(&["stack.overlap_gradient_reduction", "stack.overlap_weight_gather"]);
    coverage.express(&["stack.overlap_tensor_pieces", "stack.bucket_parameters", "stack.base_blocks"]);
    coverage.express(&["stack.vocabulary_multiple", "stack.attention"]);
    let attentions = || plan.model.blocks.iter().map(|run| &run.block.attention);
    let attention = match stack.attention {
        AttentionKernel::Unfused | AttentionKernel::FusedSoftmax => "unfused",
        // FlashAttention has neither; the release finds the kernel that has.
        _ if request.details().attention_sinks
            || attentions().any(|attention| attention.latent.is_some()) =>
        {
            "auto"
        }
        _ => "flash",
    };
    out.set("--attention-backend", attention, "");
    match stack.attention {
        AttentionKernel::Unfused => out.off("--no-masked-softmax-fusion", "model.masked_softmax_fusion"),
        AttentionKernel::Flash1 => coverage.omit("stack.attention", "no FlashAttention before version 2"),
        AttentionKernel::Flash2 => out.set("--flash-attention-version", 2, "model.flash_attention_version"),
        AttentionKernel::Flash3 => out.set("--flash-attention-version", 3, "model.flash_attention_version"),
        AttentionKernel::Flash | AttentionKernel::FusedSoftmax => {}
    }
    if !stack.fused_elementwise {
        out.off("--no-bias-gelu-fusion", "");
        out.off("--no-bias-swiglu-fusion", "model.bias_activation_fusion");
        out.off("--no-bias-dropout-fusion", "model.bias_dropout_fusion");
    }
    if stack.cross_entropy == Fusion::Fused {
        out.on("--cross-entropy-loss-fusion", "model.cross_entropy_loss_fusion");
    }
    if !stack.fused_gradient_accumulation {
        out.off("--no-gradient-accumulation-fusion", "model.gradient_accumulation_fusion");
    }
    if stack.overlap_tensor_pieces {
        out.on("--tp-comm-overlap", "model.tp_comm_overlap");
    }
    if stack.overlap_gradient_reduction {
        out.on("--overlap-grad-reduce", "ddp.overlap_grad_reduce");
    }
    let divides = out.0.iter().any(|argument| argument.flag == "--use-distributed-optimizer");
    if !divides {
        // Without a distributed optimizer nothing is gathered, and the flag is refused.
        let usual = stack.overlap_weight_gather == defaults.overlap_weight_gather;
        coverage.express_if(usual, "stack.overlap_weight_gather", "nothing is gathered");
    } else if stack.overlap_weight_gather {
        out.on("--overlap-param-gather", "ddp.overlap_param_gather");
    }
    let usual = Plan { stack: defaults.clone(), ..plan.clone() }.bucket_parameters();
    let bucket = bucket(plan, coverage);
    if bucket != usual {
        out.set("--ddp-bucket-size", bucket, "ddp.bucket_size");
    }
    out.set("--make-vocab-size-divisible-by", stack.vocabulary_multiple.value, "");
    if let Some(blocks) = &stack.base_blocks {
        out.on("--first-last-layers-bf16", "model.first_last_layers_bf16");
        out.set("--num-layers-at-start-in-bf16", blocks.first.value, "model.num_layers_at_start_in_bf16");
        out.set("--num-layers-at-end-in-bf16", blocks.last.value, "model.num_layers_at_end_in_bf16");
    }
    let overlap = overlap_pipeline(plan);
    if overlap == PipelineOverlap::Never && plan.virtual_stages > 1 {
        out.off("--no-overlap-p2p-communication", "model.overlap_p2p_comm");
    }
    coverage.express_if(
        overlap != PipelineOverlap::Always,
        "stack.overlap_pipeline",
        "messages overlap with several stages on a rank only",
    );
    // No argument changes these: Megatron-Core behaves as its entry in the catalog.
    let fixed = [
        (stack.norms == defaults.norms, "stack.norms"),
        (stack.optimizer == defaults.optimizer, "stack.optimizer"),
        (stack.overlap_tensor_backward, "stack.overlap_tensor_backward"),
        (stack.scatter_gather_pipeline, "stack.scatter_gather_pipeline"),
    ];
    for (is_default, field) in fixed {
        coverage.express_if(is_default, field, "Megatron-Core always does it");
    }
}
