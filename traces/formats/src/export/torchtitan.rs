//! The TOML configuration of torchtitan, up to version 0.2.

pub(crate) mod flavors;
mod python;

pub use python::TorchTitanPython;

use super::coverage::Coverage;
use super::fields::gradients;
use super::shared::{LAUNCHER, dispatch_within_node, fsdp_offload, fsdp_shard_ranks, uniform_recompute};
use super::{ExportedFile, Exporter, Request};
use serde::Serialize;
use trainwright_spec::data::Reshard;
use trainwright_spec::plan::{Plan, Recompute, ScheduleChoice};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::{schedule, text};
use trainwright_spec::stack::Fusion;

/// torchtitan.
pub struct TorchTitan;

/// Our schedules with torchtitan's.
pub(crate) const SCHEDULES: &[(&str, &str)] = &[
    ("gpipe", "GPipe"),
    ("1f1b", "1F1B"),
    ("interleaved", "Interleaved1F1B"),
    ("breadth-first", "LoopedBFS"),
    ("interleaved-zb", "InterleavedZeroBubble"),
    ("zb-v", "ZBVZeroBubble"),
    ("dualpipev", "DualPipeV"),
];

/// A norm that no gradient reaches, as clipping cannot be turned off.
pub(crate) const NO_LIMIT: f64 = 1e9;

/// The file of a schedule that torchtitan has no name for.
const SCHEDULE_FILE: &str = "schedule.csv";

#[derive(Serialize)]
struct Document {
    model: ModelTable,
    training: Training,
    optimizer: Named,
    parallelism: Parallelism,
    activation_checkpoint: Checkpoint,
    compile: Option<Compile>,
}

#[derive(Serialize)]
struct ModelTable {
    name: String,
    flavor: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    converters: Vec<&'static str>,
}

#[derive(Serialize)]
struct Training {
    local_batch_size: usize,
    global_batch_size: usize,
    seq_len: usize,
    max_norm: f64,
    mixed_precision_param: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    enable_cpu_offload: bool,
}

#[derive(Serialize)]
struct Named {
    name: &'static str,
}

#[derive(Serialize)]
struct Compile {
    enable: bool,
    components: Vec<&'static str>,
}

#[derive(Serialize, Default)]
struct Checkpoint {
    mode: &'static str,
    selective_ac_option: Option<String>,
}

#[derive(Serialize, Default)]
struct Parallelism {
    data_parallel_replicate_degree: usize,
    data_parallel_shard_degree: usize,
    fsdp_reshard_after_forward: &'static str,
    tensor_parallel_degree: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    enable_async_tensor_parallel: bool,
    pipeline_parallel_degree: usize,
    pipeline_parallel_schedule: Option<String>,
    pipeline_parallel_schedule_csv: Option<&'static str>,
    pipeline_parallel_microbatch_size: Option<usize>,
    module_fqns_per_model_part: Option<Vec<Vec<String>>>,
    context_parallel_degree: usize,
    context_parallel_rotate_method: Option<&'static str>,
    expert_parallel_degree: usize,
    expert_tensor_parallel_degree: Option<usize>,
    expert_parallel_comm_backend: Option<&'static str>,
}

impl Exporter for TorchTitan {
    fn name(&self) -> &'static str {
        "torchtitan"
    }

    fn summary(&self) -> &'static str {
        "torchtitan's TOML configuration, with a schedule's CSV where it has no name for it"
    }

    fn source(&self) -> &'static str {
        "torchtitan 0.2.2, torchtitan.config.JobConfig: the last version with TOML files"
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.elsewhere("cluster", LAUNCHER);
        coverage.elsewhere("stack", "torchtitan's kernels and overlap");
        let (parallelism, csv) = parallelism(plan, coverage);
        let document = Document {
            model: model(request, coverage),
            training: training(plan, coverage),
            optimizer: optimizer(plan, coverage),
            parallelism,
            activation_checkpoint: checkpoint(plan, coverage),
            compile: compile(plan),
        };
        let text = toml::to_string(&document).expect("tables of text and numbers");
        let main = ExportedFile { name: "torchtitan.toml".into(), text };
        std::iter::once(main).chain(csv).collect()
    }
}

/// What `torch.compile` compiles for the plan's stack; `None` if nothing. Asynchronous tensor parallelism needs it.
fn compile(plan: &Plan) -> Option<Compile> {
    let stack = &plan.stack;
    let model = stack.fused_elementwise || stack.overlap_tensor_pieces;
    let loss = stack.cross_entropy == Fusion::Fused;
    let components: Vec<&str> =
        [(model, "model"), (loss, "loss")].into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
    (!components.is_empty()).then_some(Compile { enable: true, components })
}

fn model(request: &Request, coverage: &mut Coverage) -> ModelTable {
    let plan = request.plan;
    let (name, flavor) = match flavors::of_shape(&plan.model).filter(|flavor| flavor.second) {
        Some(known) => {
            coverage.express(&["model"]);
            flavors::check_positions(request, known, coverage);
            if plan.mesh.pipeline > 1 && !known.second_pipeline {
                coverage
                    .refuse("mesh.pipeline", format!("torchtitan 0.2 has no pipeline of {}", known.name.0));
            }
            if request.details().further_predictions > 0 {
                coverage.remark("no prediction of further tokens, as in the plan");
            }
            (known.name.0, known.name.1.to_string())
        }
        None => {
            coverage.omit("model", flavors::lacking(&plan.model));
            ("llama3", plan.model.name.clone())
        }
    };
    let converters = match plan.job.precision {
        Precision::Fp8 => vec!["quantize.linear.float8"],
        Precision::MxFp8 => vec!["quantize.linear.mx"],
        _ => Vec::new(),
    };
    ModelTable { name: name.into(), flavor, converters }
}

fn training(plan: &Plan, coverage: &mut Coverage) -> Training {
    coverage.express(&[
        "job.sequence",
        "job.global_batch",
        "micro_batch",
        "job.precision",
        "job.gradient_clipping",
    ]);
    let precision = plan.job.precision;
    let known = [Precision::Bf16, Precision::Fp32, Precision::Fp8, Precision::MxFp8].contains(&precision);
    if !known {
        coverage.omit("job.precision", "bf16, fp32, and float8 or mx products");
    }
    if gradients(plan) == Precision::Fp32 {
        coverage.express(&["state.gradients"]);
    } else {
        coverage.omit("state.gradients", "gradients are reduced in fp32");
    }
    let cpu = fsdp_offload(plan, coverage);
    // A pipeline cuts the local batch into microbatches; without one it is a microbatch.
    let local =
        if plan.mesh.pipeline > 1 { plan.job.global_batch / plan.mesh.data } else { plan.micro_batch };
    Training {
        local_batch_size: local,
        global_batch_size: plan.job.global_batch,
        seq_len: plan.job.sequence,
        max_norm: if plan.job.gradient_clipping { 1.0 } else { NO_LIMIT },
        mixed_precision_param: if precision.base() == Precision::Fp32 { "float32" } else { "bfloat16" },
        enable_cpu_offload: cpu,
    }
}

fn optimizer(plan: &Plan, coverage: &mut Coverage) -> Named {
    let name = match plan.job.optimizer.as_str() {
        "adam" => "Adam",
        _ => "AdamW",
    };
    let known = matches!(plan.job.optimizer.as_str(), "adam" | "adamw");
    coverage.express_if(known, "job.optimizer", "Adam or AdamW; AdamW here");
    Named { name }
}

fn checkpoint(plan: &Plan, coverage: &mut Coverage) -> Checkpoint {
    if let Some(choice @ (Recompute::Full | Recompute::None)) = uniform_recompute(plan) {
        coverage.express(&["stages.recompute"]);
        let mode = if choice == Recompute::Full { "full" } else { "none" };
        return Checkpoint { mode, ..Checkpoint::default() };
    }
    let choices: Vec<Recompute> = plan.stages.iter().flat_map(|stage| stage.0.clone()).collect();
    match every_nth(&choices) {
        Some(step) => {
            coverage.express(&["stages.recompute"]);
            Checkpoint { mode: "selective", selective_ac_option: Some(step.to_string()) }
        }
        None => {
            // All blocks recompute, so that the exported plan fits wherever this one does.
            coverage.omit("stages.recompute", "all blocks, none, or every n-th whole; all here");
            Checkpoint { mode: "full", ..Checkpoint::default() }
        }
    }
}

/// n, if every n-th block of the model is recomputed in full and no other recomputes anything.
fn every_nth(choices: &[Recompute]) -> Option<usize> {
    let first = choices.iter().position(|choice| *choice == Recompute::Full)? + 1;
    let expected = |block: usize| match block.is_multiple_of(first) {
        true => Recompute::Full,
        false => Recompute::None,
    };
    (1..).zip(choices).all(|(block, choice)| *choice == expected(block)).then_some(first)
}

fn parallelism(plan: &Plan, coverage: &mut Coverage) -> (Parallelism, Option<ExportedFile>) {
    let mesh = &plan.mesh;
    coverage.express(&[
        "mesh.tensor",
        "mesh.pipeline",
        "mesh.data",
        "mesh.context",
        "mesh.expert",
        "mesh.shard",
    ]);
    coverage.express(&["data_sharding", "schedule", "virtual_stages", "stages", "sequence_parallel"]);
    let mut out = Parallelism {
        data_parallel_replicate_degree: 1,
        data_parallel_shard_degree: mesh.data,
        fsdp_reshard_after_forward: "always",
        tensor_parallel_degree: mesh.tensor,
        enable_async_tensor_parallel: plan.stack.overlap_tensor_pieces,
        pipeline_parallel_degree: mesh.pipeline,
        context_parallel_degree: mesh.context,
        expert_parallel_degree: mesh.expert,
        ..Parallelism::default()
    };
    let shared = mesh.tensor * mesh.context;
    if mesh.expert > 1 && !(mesh.data * shared).is_multiple_of(mesh.expert) {
        coverage.refuse("mesh.expert", "expert ranks are ranks that divide the state");
    }
    if mesh.tensor > 1 && !plan.sequence_parallel {
        coverage
            .omit("sequence_parallel", "with tensor parallelism norms are always split along the sequence");
    }
    data(plan, coverage, &mut out);
    match plan.context_scheme.as_str() {
        "ring" => out.context_parallel_rotate_method = Some("alltoall"),
        _ => out.context_parallel_rotate_method = Some("allgather"),
    }
    let known = ["ring", "all-gather"].contains(&plan.context_scheme.as_str());
    coverage.express_if(
        known,
        "context_scheme",
        "key and value shards go around, by all-gather or all-to-all",
    );
    if mesh.context == 1 {
        out.context_parallel_rotate_method = None;
    }
    if mesh.expert > 1 {
        experts(plan, coverage, &mut out);
    }
    let csv =
        if mesh.pipeline > 1 { pipeline(plan, coverage, &mut out) } else { without_pipeline(plan, coverage) };
    (out, csv)
}

fn data(plan: &Plan, coverage: &mut Coverage, out: &mut Parallelism) {
    let mesh = &plan.mesh;
    // One rank has nothing to divide.
    let alone = mesh.shard() == 1;
    if alone && plan.data_sharding != "none" {
        coverage.omit("data_sharding", "groups of one rank divide nothing");
        coverage.omit("mesh.shard", "groups of one rank divide nothing");
    }
    let scheme = if alone { "none" } else { plan.data_sharding.as_str() };
    match scheme {
        "none" => {
            out.data_parallel_replicate_degree = mesh.data;
            out.data_parallel_shard_degree = 1;
            if mesh.context > 1 {
                coverage.omit("data_sharding", "context ranks always divide the state");
                coverage.alter("mesh.shard", "context ranks always divide the state");
            }
        }
        "fsdp" if plan.data.reshard == Some(Reshard::AfterStep) && mesh.pipeline > 1 => {
            out.fsdp_reshard_after_forward = "never";
            coverage.express(&["data.reshard"]);
        }
        "fsdp" => {}
        "zero2-fsdp" => out.fsdp_reshard_after_forward = "never",
        // Weights are whole in a step: they are gathered once and kept.
        "zero1" | "zero2" => {
            out.fsdp_reshard_after_forward = "never";
            coverage.omit("data_sharding", "fsdp that keeps gathered weights");
            coverage.alter("data.reshard", "gathered weights are kept");
        }
        "horovod" | "parameter-server" => {
            out.data_parallel_replicate_degree = mesh.data;
            out.data_parallel_shard_degree = 1;
            coverage.omit("data_sharding", "gradients are all-reduced");
            if mesh.context > 1 {
                coverage.alter("mesh.shard", "context ranks always divide the state");
            }
        }
        "hsdp" => {
            out.data_parallel_shard_degree = fsdp_shard_ranks(plan, coverage);
            out.data_parallel_replicate_degree = mesh.data / out.data_parallel_shard_degree;
        }
        _ => coverage.omit("data_sharding", "fsdp, which it is read back as"),
    }
    match plan.data.reshard {
        Some(Reshard::AfterForward) if plan.data_sharding != "zero2-fsdp" => {
            coverage.express(&["data.reshard"])
        }
        _ => {}
    }
}

fn experts(plan: &Plan, coverage: &mut Coverage, out: &mut Parallelism) {
    let tensor = plan.mesh.expert_tensor();
    coverage.express_if(
        tensor == 1 || tensor == plan.mesh.tensor,
        "mesh.expert_tensor",
        "1, or as many as share a layer",
    );
    out.expert_tensor_parallel_degree = Some(tensor);
    let backend = match plan.experts.dispatcher.as_str() {
        "by-node" | "by-rank" | "forwarded" => "deepep",
        _ => "standard",
    };
    out.expert_parallel_comm_backend = Some(backend);
    let known = plan.experts.dispatcher != "all-gather";
    coverage.express_if(known, "experts.dispatcher", "tokens go by all-to-all");
    dispatch_within_node(plan, coverage);
}

fn without_pipeline(plan: &Plan, coverage: &mut Coverage) -> Option<ExportedFile> {
    let usual = plan.schedule == "1f1b" && plan.virtual_stages == 1;
    coverage.express_if(usual, "schedule", "without a pipeline microbatches follow each other");
    if plan.virtual_stages > 1 {
        coverage.omit("virtual_stages", "without a pipeline there is one stage");
        coverage.omit("stages", "without a pipeline there is one stage");
    }
    None
}

fn pipeline(plan: &Plan, coverage: &mut Coverage, out: &mut Parallelism) -> Option<ExportedFile> {
    out.pipeline_parallel_microbatch_size = Some(plan.micro_batch);
    out.module_fqns_per_model_part = Some(modules(plan));
    let lists = match &plan.schedule {
        ScheduleChoice::Actions(custom) => custom.action_lists().clone(),
        ScheduleChoice::Named(_) => plan.schedule().lists(plan.pipeline_shape()),
    };
    let known = SCHEDULES.iter().find(|(name, _)| plan.schedule == *name).or_else(|| {
        SCHEDULES.iter().find(|(name, _)| {
            let shape = plan.pipeline_shape();
            schedule(name)
                .is_ok_and(|schedule| schedule.check(shape).is_ok() && schedule.lists(shape) == lists)
        })
    });
    if let Some((name, other)) = known {
        out.pipeline_parallel_schedule = Some(other.to_string());
        if plan.schedule != *name {
            coverage.omit("schedule", format!("with these microbatches it is {other}"));
        }
        return None;
    }
    out.pipeline_parallel_schedule = Some("_PipelineScheduleRuntime".into());
    out.pipeline_parallel_schedule_csv = Some(SCHEDULE_FILE);
    Some(ExportedFile { name: SCHEDULE_FILE.into(), text: text::write_csv(&lists) })
}

/// The modules of each stage by their names in the model: embedding, layers, norm and output.
fn modules(plan: &Plan) -> Vec<Vec<String>> {
    let mut next = 0;
    let last = plan.stages.len() - 1;
    let stage = |(index, blocks): (usize, usize)| {
        let mut modules = Vec::new();
        modules.extend((index == 0).then(|| "tok_embeddings".to_string()));
        modules.extend((next..next + blocks).map(|layer| format!("layers.{layer}")));
        next += blocks;
        if index == last {
            modules.extend(["norm".to_string(), "output".to_string()]);
        }
        modules
    };
    plan.stages.iter().map(|stage| stage.0.len()).enumerate().map(stage).collect()
}
