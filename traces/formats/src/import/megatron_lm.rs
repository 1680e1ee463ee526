//! Arguments of Megatron-LM's `pretrain_gpt.py`.

mod model;
mod stages;
mod state;

use super::arguments::{Arguments, quoted};
use super::keys::Keys;
use super::{Imported, Importer, Request, megatron_yaml};
use crate::export::fields::has_experts;
use state::Fsdp;
use trainwright_spec::error::SpecError;
use trainwright_spec::experts::{dispatcher, flexible};
use trainwright_spec::limits::{BUCKET, LAYERS, MULTIPLE, RANKS, SEQUENCES, TOKENS};
use trainwright_spec::mesh::RankOrder;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::stack::{AttentionKernel, BaseBlocks, Fusion, PipelineOverlap, Stack};

/// Megatron-LM.
pub struct MegatronLm;

impl Importer for MegatronLm {
    fn name(&self) -> &'static str {
        "megatron-lm"
    }

    fn summary(&self) -> &'static str {
        "arguments of Megatron-LM's pretrain_gpt.py: a list, a command, a script, or --yaml-cfg"
    }

    fn stack(&self) -> &'static str {
        "megatron-core"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let given = match is_yaml(request.text) {
            true => megatron_yaml::of_file(request)?,
            false => Arguments::read(request)?,
        };
        read(request, &given)
    }
}

/// Whether a text is a YAML configuration and no list of arguments.
fn is_yaml(text: &str) -> bool {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    !lines().any(|line| line.starts_with("--") || line.contains(" --"))
        && lines().any(|line| line.ends_with(':') || line.contains(": "))
}

/// Arguments that Megatron-LM refuses beside each other.
const EXCLUSIVE: &[(&str, &str)] = &[
    ("--bf16", "--fp16"),
    ("--swiglu", "--squared-relu"),
    ("--swiglu", "--quick-geglu"),
    ("--use-torch-fsdp2", "--use-megatron-fsdp"),
    ("--use-torch-fsdp2", "--use-custom-fsdp"),
    ("--use-torch-fsdp2", "--use-distributed-optimizer"),
    ("--use-torch-fsdp2", "--fp16"),
];

/// The arguments that decide the choices of a plan.
const KEYS: Keys = &[
    ("mesh.tensor", "--tensor-model-parallel-size"),
    ("mesh.pipeline", "--pipeline-model-parallel-size"),
    ("mesh.context_inner", "--hierarchical-context-parallel-sizes"),
    ("mesh.context", "--context-parallel-size"),
    ("mesh.expert_inner", "--moe-token-dispatcher-type"),
    ("mesh.expert_tensor", "--expert-tensor-parallel-size"),
    ("mesh.expert", "--expert-model-parallel-size"),
    ("mesh.shard", "--num-distributed-optimizer-instances"),
    ("sequence_parallel", "--sequence-parallel"),
    ("context_scheme", "--cp-comm-type"),
    ("schedule", "--num-virtual-stages-per-pipeline-rank"),
    ("schedule", "--num-layers-per-virtual-pipeline-stage"),
    ("stages", "--recompute-modules"),
    ("data_sharding", "--data-parallel-sharding-strategy"),
    ("data_sharding", "--use-torch-fsdp2"),
    ("data_sharding", "--use-distributed-optimizer"),
    ("experts.capacity_factor", "--moe-expert-capacity-factor"),
    ("experts.dispatcher", "--moe-token-dispatcher-type"),
    ("micro_batch", "--micro-batch-size"),
    ("job.global_batch", "--global-batch-size"),
    ("job.sequence", "--seq-length"),
    ("job.precision", "--fp8-format"),
    ("job.precision", "--fp4-format"),
    ("job.precision", "--bf16"),
    ("job.precision", "--fp16"),
    ("job.optimizer", "--optimizer"),
    ("state", "--use-precision-aware-optimizer"),
    ("offload.optimizer_fraction", "--optimizer-offload-fraction"),
    ("offload.activation_blocks", "--cpu-offloading-num-layers"),
    ("offload.activations", "--cpu-offloading-num-layers"),
    ("offload", "--optimizer-cpu-offload"),
    ("offload", "--cpu-offloading-num-layers"),
    ("stack.attention", "--flash-attention-version"),
    ("stack.overlap_tensor_pieces", "--tp-comm-overlap"),
];

/// The plan of Megatron's arguments, whatever file they were in.
pub fn read(request: &Request, given: &Arguments) -> Result<Imported, SpecError> {
    given.exclude(EXCLUSIVE)?;
    let model = model::read(request, given)?;
    let in_file = given.optional_count("--seq-length", TOKENS)?;
    let sequence = request.sequence.or(in_file);
    let sequence = sequence.ok_or_else(|| request.missing("--seq-length", "tokens in a sequence"))?;
    let mut plan = request.blank(model, sequence);
    mesh(given, request, &mut plan)?;
    job(given, request, &mut plan)?;
    stages::read(given, request, &mut plan)?;
    experts(given, request, &mut plan)?;
    stack(given, request, &mut plan)?;
    state::read(given, request, &mut plan)?;
    Ok(given.imported(plan, KEYS))
}

fn mesh(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let mesh = &mut plan.mesh;
    mesh.tensor = given.count_or("--tensor-model-parallel-size", 1, RANKS)?;
    mesh.pipeline = given.count_or("--pipeline-model-parallel-size", 1, RANKS)?;
    mesh.context = given.count_or("--context-parallel-size", 1, RANKS)?;
    let others = mesh.tensor.saturating_mul(mesh.pipeline).saturating_mul(mesh.context);
    mesh.data = request.data_ranks(others, "tensor x pipeline x context parallel size")?;
    mesh.expert = given.count_or("--expert-model-parallel-size", 1, RANKS)?;
    let expert_tensor = given.optional_count("--expert-tensor-parallel-size", RANKS)?;
    mesh.expert_tensor = expert_tensor.filter(|ranks| *ranks != mesh.tensor);
    if given.has("--use-tp-pp-dp-mapping") {
        mesh.order = RankOrder::DataLast;
    }
    plan.sequence_parallel = given.has("--sequence-parallel") && mesh.tensor > 1;
    let kind = given.text("--cp-comm-type").unwrap_or("p2p");
    let scheme = match kind {
        "p2p" => "ring",
        "allgather" | "all_gather" => "all-gather",
        "a2a" => "ulysses",
        "a2a+p2p" => "hybrid",
        other => return Err(request.bad_text("--cp-comm-type", other, "p2p, all_gather, a2a or a2a+p2p")),
    };
    plan.context_scheme = scheme.into();
    if let Some(sizes) = given.list("--hierarchical-context-parallel-sizes") {
        let inner = sizes.first().and_then(|size| size.parse().ok()).filter(|size| RANKS.allows(*size));
        plan.mesh.context_inner = inner.map(|size| size as usize).ok_or_else(|| {
            let value = quoted(&sizes.join(" "));
            request.bad("--hierarchical-context-parallel-sizes", value, "two numbers should stand here")
        })?;
    }
    Ok(())
}

fn job(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    plan.micro_batch = match given.optional_count("--micro-batch-size", SEQUENCES)? {
        Some(size) => size,
        None if request.model.is_some() => {
            given.assume("--micro-batch-size", 1);
            1
        }
        None => given.count("--micro-batch-size", SEQUENCES)?,
    };
    let least = plan.micro_batch.saturating_mul(plan.mesh.data);
    plan.job.global_batch = given.count_or("--global-batch-size", least, SEQUENCES)?;
    let base = match (given.has("--bf16"), given.has("--fp16")) {
        (true, _) => Precision::Bf16,
        (_, true) => Precision::Fp16,
        _ => Precision::Fp32,
    };
    let recipe = given.text("--fp8-recipe").unwrap_or("delayed");
    plan.job.precision = match (given.text("--fp8-format"), recipe) {
        (None, _) if given.text("--fp4-format").is_some() => Precision::NvFp4,
        (None, _) => base,
        (Some(_), "delayed" | "tensorwise") => Precision::Fp8,
        (Some(_), "blockwise") => Precision::Fp8Block,
        (Some(_), "mxfp8") => Precision::MxFp8,
        (Some(_), other) => {
            return Err(request.bad_text("--fp8-recipe", other, "delayed, tensorwise, blockwise or mxfp8"));
        }
    };
    given.has("--fp4-recipe");
    let momentum = given.number("--sgd-momentum")?.unwrap_or(0.9);
    plan.job.optimizer = match given.text("--optimizer").unwrap_or("adam") {
        "adam" => "adamw".into(),
        "sgd" if momentum == 0.0 => "sgd".into(),
        "sgd" => "momentum".into(),
        "muon" | "dist_muon" => "muon".into(),
        other => return Err(request.bad_text("--optimizer", other, "adam, sgd, muon or dist_muon")),
    };
    let mode = given.text("--muon-tp-mode").unwrap_or("blockwise");
    if plan.job.optimizer == "muon" && plan.mesh.tensor > 1 && mode != "duplicated" {
        given.assume("--muon-tp-mode", "duplicated: each tensor rank makes whole matrices orthogonal");
    }
    plan.job.gradient_clipping = given.number("--clip-grad")?.unwrap_or(1.0) > 0.0;
    Ok(())
}

fn experts(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let kind = given.text("--moe-token-dispatcher-type").unwrap_or("allgather");
    given.has("--moe-flex-dispatcher-backend");
    let capacity = given.number("--moe-expert-capacity-factor")?;
    if let Some(capacity) = capacity.filter(|capacity| *capacity <= 0.0) {
        return Err(request.bad(
            "--moe-expert-capacity-factor",
            capacity,
            "a number above 0 should stand here",
        ));
    }
    if !has_experts(plan) {
        return Ok(());
    }
    let in_node = (request.cluster.node.gpus.value / plan.mesh.expert_tensor()).max(1);
    plan.experts.dispatcher = match kind {
        "allgather" => "all-gather".into(),
        "alltoall" => "all-to-all".into(),
        "flex" => {
            let kernels = plan.stack.dispatch_multiprocessors.is_some();
            flexible(kernels, plan.mesh.expert > in_node).name().into()
        }
        other => {
            return Err(request.bad_text(
                "--moe-token-dispatcher-type",
                other,
                "allgather, alltoall or flex",
            ));
        }
    };
    if dispatcher(&plan.experts.dispatcher)?.tells_nodes() {
        plan.mesh.expert_inner = plan.mesh.expert.min(in_node);
    }
    plan.experts.capacity_factor = capacity;
    Ok(())
}

fn stack(given: &Arguments, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let sourced = |value: usize, flag: &str| Sourced::new(value, flag);
    let separate = ["--no-bias-gelu-fusion", "--no-bias-swiglu-fusion", "--no-bias-dropout-fusion"];
    let fusion = |fused: bool| if fused { Fusion::Fused } else { Fusion::Separate };
    let stack = &mut plan.stack;
    stack.attention = attention(given, request, stack)?;
    // All three are read, so that none is reported as unread.
    stack.fused_elementwise = !separate.map(|flag| given.has(flag)).contains(&true);
    stack.cross_entropy = fusion(given.has("--cross-entropy-loss-fusion"));
    stack.fused_gradient_accumulation = !given.has("--no-gradient-accumulation-fusion");
    stack.overlap_tensor_pieces = given.has("--tp-comm-overlap");
    stack.overlap_gradient_reduction = given.has("--overlap-grad-reduce");
    let gathers = given.has("--overlap-param-gather");
    match state::fsdp(given) {
        // Its hooks gather and reduce beside the layers, whatever these flags say.
        Fsdp::Torch => (stack.overlap_gradient_reduction, stack.overlap_weight_gather) = (true, true),
        Fsdp::Megatron => stack.overlap_weight_gather = gathers,
        // Nothing is gathered where nothing is divided.
        Fsdp::None if state::divides(given) => stack.overlap_weight_gather = gathers,
        Fsdp::None => {}
    }
    if let Some(size) = given.optional_count("--ddp-bucket-size", BUCKET)? {
        stack.bucket_parameters = sourced(size, "--ddp-bucket-size");
        stack.bucket_parameters_per_data_rank = sourced(0, "--ddp-bucket-size");
    }
    let multiple = given.count_or("--make-vocab-size-divisible-by", 128, MULTIPLE)?;
    if multiple != stack.vocabulary_multiple.value {
        stack.vocabulary_multiple = sourced(multiple, "--make-vocab-size-divisible-by");
    }
    let ends = ["--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16"];
    let blocks = |flag: &str| given.count_or(flag, 1, LAYERS.or_zero());
    let [first, last] = [blocks(ends[0])?, blocks(ends[1])?];
    let unchanged =
        stack.base_blocks.take().filter(|blocks| (blocks.first.value, blocks.last.value) == (first, last));
    stack.base_blocks = given.has("--first-last-layers-bf16").then(|| {
        unchanged
            .unwrap_or_else(|| BaseBlocks { first: sourced(first, ends[0]), last: sourced(last, ends[1]) })
    });
    let apart = given.has("--no-overlap-p2p-communication");
    if plan.virtual_stages > 1 {
        stack.overlap_pipeline = if apart { PipelineOverlap::Never } else { PipelineOverlap::Interleaved };
    }
    Ok(())
}

fn attention(given: &Arguments, request: &Request, stack: &Stack) -> Result<AttentionKernel, SpecError> {
    let backend = given.text("--attention-backend").unwrap_or("auto");
    let version = given.number("--flash-attention-version")?;
    let together = !given.has("--no-masked-softmax-fusion");
    given.has("--use-flash-attn");
    Ok(match (backend, version) {
        ("unfused" | "local", _) if together => AttentionKernel::FusedSoftmax,
        ("unfused" | "local", _) => AttentionKernel::Unfused,
        (_, Some(2.0)) => AttentionKernel::Flash2,
        (_, Some(3.0)) => AttentionKernel::Flash3,
        ("auto", None) if stack.attention.version().is_some() => stack.attention,
        ("flash" | "fused" | "auto", _) => AttentionKernel::Flash,
        (other, _) => {
            return Err(request.bad_text(
                "--attention-backend",
                other,
                "flash, fused, unfused, local or auto",
            ));
        }
    })
}
