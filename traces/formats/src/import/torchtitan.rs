//! The configuration of torchtitan: TOML up to version 0.2, Python from 0.3 on.

mod python;

use super::arguments::quoted;
use super::keys::Keys;
use super::tables::Tables;
use super::{Imported, Importer, Request, fuse_shared_attention, stages};
use crate::export::{FLAVORS, NO_LIMIT, SCHEDULES as NAMES};
use serde_json::Value;
use trainwright_spec::data::Reshard;
use trainwright_spec::error::SpecError;
use trainwright_spec::experts::flexible;
use trainwright_spec::limits::{LAYERS, RANKS, SEQUENCES, TOKENS};
use trainwright_spec::model::{Model, preset};
use trainwright_spec::plan::{Piece, Plan, Recompute, ScheduleChoice};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;
use trainwright_spec::schedule::{Custom, SCHEDULES, Schedule, text};
use trainwright_spec::sourced::Sourced;
use trainwright_spec::stack::{Fusion, Stack};

/// torchtitan.
pub struct TorchTitan;

/// The keys that decide the choices of a plan. Its data scheme is refused for the schedule alone.
const KEYS: Keys = &[
    ("mesh.tensor", "parallelism.tensor_parallel_degree"),
    ("mesh.pipeline", "parallelism.pipeline_parallel_degree"),
    ("mesh.context", "parallelism.context_parallel_degree"),
    ("mesh.expert_inner", "parallelism.expert_parallel_comm_backend"),
    ("mesh.expert_tensor", "parallelism.expert_tensor_parallel_degree"),
    ("mesh.expert", "parallelism.expert_parallel_degree"),
    ("mesh.shard", "parallelism.data_parallel_shard_degree"),
    ("sequence_parallel", "parallelism.tensor_parallel_degree"),
    ("context_scheme", "parallelism.context_parallel_rotate_method"),
    ("stack.attention", "parallelism.context_parallel_degree"),
    ("stack.overlap_tensor_pieces", "parallelism.enable_async_tensor_parallel"),
    ("schedule", SCHEDULE_CSV),
    ("schedule", SCHEDULE),
    ("data_sharding", SCHEDULE_CSV),
    ("data_sharding", SCHEDULE),
    ("data.reshard", "parallelism.fsdp_reshard_after_forward"),
    ("experts.dispatcher", "parallelism.expert_parallel_comm_backend"),
    ("micro_batch", "parallelism.pipeline_parallel_microbatch_size"),
    ("job.global_batch", "training.global_batch_size"),
    ("job.global_batch", "training.local_batch_size"),
    ("job.sequence", "training.seq_len"),
    ("job.gradient_clipping", "training.max_norm"),
    ("job.precision", "model.converters"),
    ("job.precision", "training.mixed_precision_param"),
    ("offload", "training.enable_cpu_offload"),
];

/// torchtitan with model and loss compiled, and before the loss was.
const STACK: &str = "torchtitan-2025";
const STACK_WITHOUT_LOSS: &str = "torchtitan";

const COMPONENTS: &str = "compile.components";
const SCHEDULE: &str = "parallelism.pipeline_parallel_schedule";
const SCHEDULE_CSV: &str = "parallelism.pipeline_parallel_schedule_csv";
const PARTS: &str = "parallelism.module_fqns_per_model_part";
const SPLIT_POINTS: &str = "parallelism.pipeline_parallel_split_points";

impl Importer for TorchTitan {
    fn name(&self) -> &'static str {
        "torchtitan"
    }

    fn summary(&self) -> &'static str {
        "torchtitan's configuration: TOML up to 0.2, Python from 0.3 (--set config=NAME if it has several)"
    }

    fn stack(&self) -> &'static str {
        STACK
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let tables = match python::is_python(request.text) {
            true => Tables::from_value(request, python::tables(request)?)?,
            false => Tables::from_toml(request)?,
        };
        tables.get("config");
        tables.get("training.disable_cuda_graphs");
        let model = model(&tables, request)?;
        let in_file = tables.count("training.seq_len", TOKENS)?;
        let mut plan = request.blank(model, request.sequence.or(in_file).unwrap_or(2048));
        compile(&tables, request, &mut plan)?;
        mesh(&tables, request, &mut plan)?;
        data(&tables, request, &mut plan)?;
        job(&tables, request, &mut plan)?;
        if plan.mesh.tensor > 1
            && plan.stack.overlap_tensor_pieces
            && plan.job.precision.quantisation().is_some()
        {
            tables.assume("parallelism.enable_async_tensor_parallel", "false with products in 8 bits");
            plan.stack.overlap_tensor_pieces = false;
        }
        pipeline(&tables, request, &mut plan)?;
        experts(&tables, &mut plan)?;
        Ok(tables.imported(plan, KEYS))
    }
}

fn model(tables: &Tables, request: &Request) -> Result<Model, SpecError> {
    let (name, flavor) = (tables.text("model.name")?, tables.text("model.flavor")?);
    if let Some(model) = &request.model {
        return Ok(model.clone());
    }
    let given = (name.as_deref().unwrap_or("llama3"), flavor.as_deref().unwrap_or("debugmodel"));
    match FLAVORS.iter().find(|flavor| flavor.name == given) {
        Some(flavor) => preset::preset(flavor.preset),
        None => {
            let known: Vec<String> =
                FLAVORS.iter().map(|flavor| format!("{} {}", flavor.name.0, flavor.name.1)).collect();
            let allowed = format!("known are {}; others by --model", known.join(", "));
            Err(request.bad("model.flavor", quoted(&format!("{} {}", given.0, given.1)), allowed))
        }
    }
}

/// What `torch.compile` compiles decides which of torchtitan's stacks runs the plan, and what it fuses. Other stacks fuse
/// what they fuse. Attention is one kernel in any case.
fn compile(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    // Until 2025 it was called so.
    let earlier = tables.flag("training.compile")?;
    let enabled = tables.flag("compile.enable")? || earlier;
    tables.get("compile.enable_async_tensor_parallel");
    let components =
        tables.get(COMPONENTS).map_or_else(|| vec!["model".to_string(), "loss".to_string()], names);
    if let Some(other) = components.iter().find(|name| !["model", "loss"].contains(&name.as_str())) {
        return Err(request.bad_text(COMPONENTS, other, "model and loss"));
    }
    let compiled = |name: &str| enabled && components.iter().any(|component| component == name);
    let (model, loss) = (compiled("model"), compiled("loss"));
    if ![STACK, STACK_WITHOUT_LOSS].contains(&plan.stack.name.as_str()) {
        if plan.stack.fused_elementwise != model {
            tables.assume("compile.enable", format!("{}, as {} has it", !model, plan.stack.name));
        }
        return Ok(());
    }
    if !loss && plan.stack.name == STACK {
        plan.stack = Stack::from_name(STACK_WITHOUT_LOSS)?;
    }
    if tables.get("compile.enable").is_none() && tables.get("training.compile").is_none() {
        tables.assume("compile.enable", "false, so that attention alone is fused");
    }
    if !model {
        plan.stack.summary =
            "torchtitan without torch.compile of the model: FSDP2, attention is fused alone".into();
        plan.stack.fused_elementwise = false;
        plan.stack.traffic = Some(Sourced::new(1.0, "nothing is compiled: each operator is a kernel"));
    }
    if loss && !model {
        plan.stack.cross_entropy = Fusion::Fused;
    }
    Ok(())
}

fn mesh(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let ranks = |name: &str| -> Result<usize, SpecError> {
        Ok(tables.count(&format!("parallelism.{name}"), RANKS.or_zero())?.filter(|n| *n > 0).unwrap_or(1))
    };
    let mesh = &mut plan.mesh;
    mesh.tensor = ranks("tensor_parallel_degree")?;
    mesh.pipeline = ranks("pipeline_parallel_degree")?;
    mesh.context = ranks("context_parallel_degree")?;
    let others = mesh.tensor.saturating_mul(mesh.pipeline).saturating_mul(mesh.context);
    mesh.data = request.data_ranks(others, "tensor x pipeline x context parallel degree")?;
    plan.sequence_parallel = mesh.tensor > 1;
    plan.stack.sequence_parallel |= plan.sequence_parallel;
    plan.stack.overlap_tensor_pieces = tables.flag("parallelism.enable_async_tensor_parallel")?;
    plan.stack.overlap_tensor_backward |= plan.stack.overlap_tensor_pieces;
    if plan.mesh.context > 1 {
        fuse_shared_attention(plan);
    }
    let method = tables.text("parallelism.context_parallel_rotate_method")?;
    plan.context_scheme = match method.as_deref() {
        None if plan.mesh.context == 1 => "ring".into(),
        None | Some("allgather") => "all-gather".into(),
        Some("alltoall") => "ring".into(),
        Some(other) => {
            return Err(request.bad_text(
                "parallelism.context_parallel_rotate_method",
                other,
                "allgather or alltoall",
            ));
        }
    };
    Ok(())
}

fn data(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let copies =
        tables.count("parallelism.data_parallel_replicate_degree", RANKS.or_zero())?.unwrap_or(1).max(1);
    let key = "parallelism.data_parallel_shard_degree";
    let shard = match tables.number(key)? {
        Some(shard) if shard > 0.0 => shard as usize,
        _ => plan.mesh.data / copies,
    };
    if copies.saturating_mul(shard) != plan.mesh.data {
        let allowed = format!("times {copies} replicas it must be the {} data ranks", plan.mesh.data);
        return Err(request.bad(key, shard, allowed));
    }
    let reshard = tables.text("parallelism.fsdp_reshard_after_forward")?;
    let with_pipeline = plan.mesh.pipeline > 1;
    // By default weights are freed after forward unless a pipeline needs them for the next microbatch.
    let always = match reshard.as_deref() {
        Some("always") => true,
        Some("never") => false,
        _ => !with_pipeline,
    };
    // Context ranks divide the state too.
    let scheme = match (copies, shard * plan.mesh.context) {
        (_, 1) => "none",
        (1, _) if always || with_pipeline => "fsdp",
        (1, _) => "zero2-fsdp",
        _ => "hsdp",
    };
    // Microbatches that are in flight together share the weights that are kept.
    if scheme == "fsdp" && !always {
        plan.data.reshard = Some(Reshard::AfterStep);
    }
    plan.data_sharding = scheme.into();
    if scheme == "hsdp" {
        plan.mesh.shard = Some(shard * plan.mesh.context);
    }
    if !plan.stack.has_data_scheme(scheme) {
        plan.stack.data_schemes.push(scheme.into());
    }
    Ok(())
}

fn job(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    // Until 2025 it was called so.
    let earlier = tables.count("training.batch_size", SEQUENCES)?;
    let given = tables.count("training.local_batch_size", SEQUENCES)?.or(earlier);
    if given.is_none() {
        tables.assume("training.local_batch_size", 8);
    }
    let local = given.unwrap_or(8);
    let batch = tables.number("training.global_batch_size")?.filter(|batch| *batch > 0.0);
    plan.job.global_batch = batch.map_or(local * plan.mesh.data, |batch| batch as usize);
    let cut = tables.count("parallelism.pipeline_parallel_microbatch_size", SEQUENCES)?.unwrap_or(1);
    plan.micro_batch = if plan.mesh.pipeline > 1 { cut } else { local };
    let limit = tables.number("training.max_norm")?.unwrap_or(1.0);
    plan.job.gradient_clipping = limit > 0.0 && limit < NO_LIMIT;
    let converters = tables.get("model.converters").and_then(Value::as_array).cloned().unwrap_or_default();
    let has = |name: &str| converters.iter().any(|converter| converter == name);
    plan.job.precision = match tables.text("training.mixed_precision_param")?.as_deref() {
        _ if has("quantize.linear.float8") => Precision::Fp8,
        _ if has("quantize.linear.mx") => Precision::MxFp8,
        None | Some("bfloat16") => Precision::Bf16,
        Some("float32") => Precision::Fp32,
        Some(other) => {
            return Err(request.bad_text("training.mixed_precision_param", other, "bfloat16 or float32"));
        }
    };
    let of_stack = plan.stack.gradient_precision(plan.job.precision).base();
    plan.state.gradients = (of_stack != Precision::Fp32).then_some(Precision::Fp32);
    plan.job.optimizer = match tables.text("optimizer.name")?.as_deref() {
        None | Some("AdamW") => "adamw".into(),
        Some("Adam") => "adam".into(),
        Some(other) => return Err(request.bad_text("optimizer.name", other, "Adam or AdamW")),
    };
    if tables.flag("training.enable_cpu_offload")? {
        plan.offload.optimizer = Some(Place::Host);
        plan.offload.gradients = Some(Place::Host);
        plan.offload.parameters = Some(Place::Host);
    }
    Ok(())
}

fn pipeline(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let name = tables.text(SCHEDULE)?.unwrap_or_else(|| "1F1B".into());
    let file = tables.text(SCHEDULE_CSV)?.filter(|file| !file.is_empty());
    let p = plan.mesh.pipeline;
    if p > 1 {
        let known = NAMES.iter().find(|(_, other)| *other == name);
        if let Some(file) = &file {
            plan.schedule = of_table(request, file)?;
        } else if let Some((ours, _)) = known {
            plan.schedule = (*ours).into();
        } else {
            let names: Vec<&str> = NAMES.iter().map(|(_, other)| *other).collect();
            return Err(request.bad_text(SCHEDULE, &name, format!("one of {}", names.join(", "))));
        }
    }
    let counts = counts(tables, request, plan)?;
    plan.virtual_stages = (counts.len() / p).max(1);
    if let ScheduleChoice::Actions(custom) = &plan.schedule {
        let shape = plan.pipeline_shape();
        let matches = |known: &&&dyn Schedule| {
            known.check(shape).is_ok() && known.lists(shape) == *custom.action_lists()
        };
        if let Some(known) = SCHEDULES.iter().find(matches) {
            plan.schedule = known.name().into();
        }
    }
    let mode = tables.text("activation_checkpoint.mode")?.unwrap_or_else(|| "selective".into());
    let kind = tables.text("activation_checkpoint.selective_ac_option")?.unwrap_or_else(|| "2".into());
    let choices = match (mode.as_str(), kind.parse::<usize>()) {
        ("none", _) => stages(&counts, Recompute::None),
        ("full", _) => stages(&counts, Recompute::Full),
        // Every n-th block in full.
        ("selective", Ok(step)) if step > 0 => {
            let mut layer = 0;
            let mut stages = stages(&counts, Recompute::None);
            for choice in stages.iter_mut().flat_map(|stage| &mut stage.0) {
                layer += 1;
                if layer % step == 0 {
                    *choice = Recompute::Full;
                }
            }
            stages
        }
        ("selective", _) if kind == "op" => {
            tables.assume("activation_checkpoint.selective_ac_option", "op as norms and activations again");
            plan.stack.selective_recompute = true;
            stages(&counts, Recompute::of(&[Piece::Norm, Piece::Activation]))
        }
        _ => {
            let value = format!("{mode}, {kind}");
            let allowed = "none, full, or selective with op or a number";
            return Err(request.bad_text("activation_checkpoint.mode", &value, allowed));
        }
    };
    plan.stages = choices;
    Ok(())
}

/// The schedule in the CSV that `file` names.
fn of_table(request: &Request, file: &str) -> Result<ScheduleChoice, SpecError> {
    let Some(text) = &request.schedule else {
        return Err(request.bad_text(SCHEDULE_CSV, file, "give that file by --schedule-csv"));
    };
    let custom = Custom::new(text::read_csv(text, file)?);
    let custom = custom.map_err(|fault| request.bad_text(SCHEDULE_CSV, file, fault.to_string()))?;
    Ok(ScheduleChoice::Actions(Box::new(custom)))
}

/// The blocks of each stage: by lists of modules, by the modules that begin stages, or in equal shares.
fn counts(tables: &Tables, request: &Request, plan: &Plan) -> Result<Vec<usize>, SpecError> {
    let blocks = plan.model.layers();
    let parts = tables.get(PARTS).and_then(Value::as_array);
    let points = tables.get(SPLIT_POINTS).map(names).filter(|points| !points.is_empty());
    let (key, counts) = match (parts, points) {
        _ if plan.mesh.pipeline == 1 => return shares(tables, request, plan, blocks),
        (Some(parts), _) => (PARTS, parts.iter().map(blocks_of).collect()),
        (None, Some(points)) => (SPLIT_POINTS, between(&points, request, blocks)?),
        (None, None) => return shares(tables, request, plan, blocks),
    };
    let placed: usize = counts.iter().sum();
    if placed != blocks {
        return Err(request.bad(key, format!("of {placed} blocks"), format!("the model has {blocks}")));
    }
    match counts.len().is_multiple_of(plan.mesh.pipeline) {
        true => Ok(counts),
        false => {
            let value = format!("of {} stages", counts.len());
            Err(request.bad(key, value, format!("a multiple of the {} pipeline ranks", plan.mesh.pipeline)))
        }
    }
}

/// The names of a list, or of a text with commas, as on the command line; what is none stays as it is written.
fn names(value: &Value) -> Vec<String> {
    let name = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    match value {
        Value::Array(values) => values.iter().map(name).collect(),
        value => {
            let names = name(value);
            names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect()
        }
    }
}

/// The blocks of the stages that begin with the embedding and then with each of these layers.
fn between(points: &[String], request: &Request, blocks: usize) -> Result<Vec<usize>, SpecError> {
    let mut starts = vec![0];
    for (index, point) in points.iter().enumerate() {
        let layer = point.strip_prefix("layers.").and_then(|layer| layer.parse::<usize>().ok());
        let rises = |layer: &usize| index == 0 || *layer > starts[index];
        match layer.filter(|layer| *layer < blocks).filter(rises) {
            Some(layer) => starts.push(layer),
            None => {
                let allowed = format!("layers in their order, from layers.0 to layers.{}", blocks - 1);
                return Err(request.bad_text(SPLIT_POINTS, point, allowed));
            }
        }
    }
    let ends = starts.iter().skip(1).chain([&blocks]);
    Ok(starts.iter().zip(ends).map(|(start, end)| end - start).collect())
}

/// Blocks among the names of a stage's modules.
fn blocks_of(names: &Value) -> usize {
    let names = names.as_array().map(Vec::as_slice).unwrap_or_default();
    names.iter().filter(|name| name.as_str().is_some_and(|name| name.starts_with("layers."))).count()
}

/// The blocks of each stage without a list of modules: embedding and output count as some blocks each.
fn shares(tables: &Tables, request: &Request, plan: &Plan, blocks: usize) -> Result<Vec<usize>, SpecError> {
    let key = |name: &str| format!("parallelism.pipeline_parallel_{name}");
    let first = tables.count(&key("first_stage_less_layers"), LAYERS.or_zero())?.unwrap_or(1);
    let last = tables.count(&key("last_stage_less_layers"), LAYERS.or_zero())?.unwrap_or(1);
    let of_stage = tables.count(&key("layers_per_stage"), LAYERS.or_zero())?;
    let p = plan.mesh.pipeline;
    if p == 1 {
        return Ok(vec![blocks]);
    }
    let loops = ["1f1b", "gpipe"].iter().all(|single| plan.schedule != *single);
    let stages = match of_stage {
        Some(size) if size > 0 => (blocks + first + last).div_ceil(size),
        _ => p * if loops { 2 } else { 1 },
    };
    let weight = blocks + first + last;
    // The first stages take the remainder.
    let share = |stage: usize| weight / stages + usize::from(stage < weight % stages);
    let mut counts: Vec<usize> = (0..stages).map(share).collect();
    let too_few =
        || request.bad(&key("degree"), p, format!("{stages} stages are too many for {blocks} blocks"));
    counts[0] = counts[0].checked_sub(first).ok_or_else(too_few)?;
    counts[stages - 1] = counts[stages - 1].checked_sub(last).ok_or_else(too_few)?;
    match stages.is_multiple_of(p) {
        true => Ok(counts),
        false => Err(request.bad(
            &key("layers_per_stage"),
            of_stage.unwrap_or(0),
            format!("{stages} stages do not divide by {p} ranks"),
        )),
    }
}

fn experts(tables: &Tables, plan: &mut Plan) -> Result<(), SpecError> {
    let ranks = tables.count("parallelism.expert_parallel_degree", RANKS.or_zero())?.unwrap_or(1).max(1);
    let tensor = tables.count("parallelism.expert_tensor_parallel_degree", RANKS)?.unwrap_or(1);
    let backend = tables.text("parallelism.expert_parallel_comm_backend")?;
    if !crate::export::fields::has_experts(plan) {
        return Ok(());
    }
    plan.mesh.expert = ranks;
    plan.mesh.expert_tensor = (ranks > 1 && tensor != plan.mesh.tensor).then_some(tensor);
    if backend.as_deref() == Some("deepep") {
        let in_node = (plan.cluster.node.gpus.value / plan.mesh.expert_tensor()).max(1);
        let dispatcher = flexible(plan.stack.dispatch_multiprocessors.is_some(), ranks > in_node);
        plan.experts.dispatcher = dispatcher.name().into();
        if dispatcher.tells_nodes() {
            plan.mesh.expert_inner = ranks.min(in_node);
        }
    }
    Ok(())
}
