//! The JSON configuration of DeepSpeed.

use super::keys::Keys;
use super::tables::Tables;
use super::{Imported, Importer, Request, even, offload_undivided, shard, stages};
use crate::export::JSON_COMMENT;
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{BUCKET, LAYERS, RANKS, SEQUENCES};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;
use trainwright_spec::sourced::Sourced;

/// DeepSpeed.
pub struct DeepSpeed;

/// The keys that decide the choices of a plan.
const KEYS: Keys = &[
    ("mesh.tensor", "tensor_parallel.autotp_size"),
    ("mesh.context", "sequence_parallel_size"),
    ("context_scheme", "sequence_parallel_size"),
    ("mesh.pipeline", "pipeline.stages"),
    ("mesh.shard", "zero_optimization.mics_shard_size"),
    ("data_sharding", "zero_optimization.stage"),
    ("data.reshard", "zero_optimization.stage"),
    ("micro_batch", "train_micro_batch_size_per_gpu"),
    ("job.global_batch", "train_batch_size"),
    ("job.global_batch", "train_micro_batch_size_per_gpu"),
    ("job.precision", "bf16.enabled"),
    ("job.precision", "fp16.enabled"),
    ("job.optimizer", "optimizer.type"),
    ("offload.optimizer_fraction", "zero_optimization.offload_optimizer.ratio"),
    ("offload.optimizer", "zero_optimization.offload_optimizer.device"),
    ("offload.gradients", "zero_optimization.offload_optimizer.device"),
    ("offload.parameters", "zero_optimization.offload_param.device"),
    ("offload", "activation_checkpointing.cpu_checkpointing"),
    ("offload", "zero_optimization.offload_optimizer.device"),
];

impl Importer for DeepSpeed {
    fn name(&self) -> &'static str {
        "deepspeed"
    }

    fn summary(&self) -> &'static str {
        "DeepSpeed's JSON configuration; --model and --seq say what it does not"
    }

    fn stack(&self) -> &'static str {
        "deepspeed"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        let tables = Tables::from_json(request)?;
        tables.get(JSON_COMMENT);
        let (model, sequence) = (request.given_model("DeepSpeed")?, request.given_sequence("DeepSpeed")?);
        let mut plan = request.blank(model, sequence);
        parallel(&tables, request, &mut plan)?;
        batch(&tables, request, &mut plan)?;
        state(&tables, request, &mut plan)?;
        zero(&tables, request, &mut plan)?;
        Ok(tables.imported(plan, KEYS))
    }
}

fn parallel(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let ranks = |path: &str| {
        Ok::<usize, SpecError>(tables.count(path, RANKS.or_zero())?.filter(|n| *n > 0).unwrap_or(1))
    };
    let mesh = &mut plan.mesh;
    mesh.tensor = ranks("tensor_parallel.autotp_size")?;
    mesh.context = ranks("sequence_parallel_size")?;
    mesh.pipeline = ranks("pipeline.stages")?;
    let others = mesh.tensor.saturating_mul(mesh.context).saturating_mul(mesh.pipeline);
    mesh.data = request.data_ranks(others, "tensor x sequence x pipeline ranks")?;
    if mesh.context > 1 {
        plan.context_scheme = "ulysses".into();
    }
    tables.text("pipeline.partition")?;
    let (p, blocks) = (mesh.pipeline, plan.model.layers());
    let counts = even(blocks, p);
    plan.stages = stages(&counts, recompute(tables, blocks)?);
    // It permits what the plan says anyway.
    tables.flag("zero_allow_untested_optimizer")?;
    if tables.flag("activation_checkpointing.cpu_checkpointing")? {
        plan.offload.activations = Some(Place::Host);
    }
    Ok(())
}

/// The script calls checkpointing, and the section is how. A number of checkpoints, or what becomes of their inputs, says
/// that it does; a section without either says nothing of it.
fn recompute(tables: &Tables, blocks: usize) -> Result<Recompute, SpecError> {
    let section = "activation_checkpointing";
    let key = |name: &str| format!("{section}.{name}");
    let number = tables.count(&key("number_checkpoints"), LAYERS.or_zero())?;
    let inputs = tables.flag(&key("partition_activations"))? || tables.flag(&key("cpu_checkpointing"))?;
    let again = number.map_or(inputs, |number| number > 0);
    if tables.get(section).is_some() && number != Some(blocks) {
        let taken = match again {
            true => "all blocks in full, if the script calls deepspeed.checkpointing for each",
            false => {
                "no block: the section alone recomputes nothing; number_checkpoints says that the script does"
            }
        };
        tables.assume(section, taken);
    }
    Ok(if again { Recompute::Full } else { Recompute::None })
}

/// What `auto` stands for in transformers' `TrainingArguments`: `per_device_train_batch_size` and `max_grad_norm`.
const AUTO_MICRO_BATCH: usize = 8;
const AUTO_CLIPPING: f64 = 1.0;

/// Two of the three numbers imply the third.
fn batch(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let batch = tables.count("train_batch_size", SEQUENCES)?;
    let micro = tables.count("train_micro_batch_size_per_gpu", SEQUENCES)?;
    let steps = tables.count("gradient_accumulation_steps", SEQUENCES)?;
    let data = plan.mesh.data;
    let (batch, micro) = match (batch, micro, steps) {
        (Some(batch), Some(micro), Some(steps))
            if batch != micro.saturating_mul(steps).saturating_mul(data) =>
        {
            let allowed = format!("micro-batch {micro} x steps {steps} x {data} data ranks");
            return Err(request.bad("train_batch_size", batch, allowed));
        }
        (Some(batch), Some(micro), _) => (batch, micro),
        (Some(batch), None, steps) => (batch, batch / data / steps.unwrap_or(1).max(1)),
        (None, Some(micro), steps) => (micro.saturating_mul(data).saturating_mul(steps.unwrap_or(1)), micro),
        (None, None, steps) => {
            let (micro, steps) = (AUTO_MICRO_BATCH, steps.unwrap_or(1));
            tables.assume("train_micro_batch_size_per_gpu", micro);
            tables.assume("gradient_accumulation_steps", steps);
            (micro.saturating_mul(data).saturating_mul(steps), micro)
        }
    };
    plan.micro_batch = micro;
    plan.job.global_batch = batch;
    let limit = tables.number("gradient_clipping")?;
    if tables.is_auto("gradient_clipping") {
        tables.assume("gradient_clipping", AUTO_CLIPPING);
    }
    let usual = if tables.is_auto("gradient_clipping") { AUTO_CLIPPING } else { 0.0 };
    plan.job.gradient_clipping = limit.unwrap_or(usual) > 0.0;
    Ok(())
}

/// The keys that choose a precision of 16 bits.
const PRECISIONS: [(&str, Precision); 2] =
    [("bf16.enabled", Precision::Bf16), ("fp16.enabled", Precision::Fp16)];

fn precision(tables: &Tables, request: &Request) -> Result<Precision, SpecError> {
    let [bf16, fp16] = PRECISIONS.map(|(key, _)| tables.flag(key));
    match (bf16?, fp16?) {
        (true, true) => Err(request.bad("bf16.enabled", true, "fp16.enabled is true too: only one may be")),
        (true, false) => Ok(Precision::Bf16),
        (false, true) => Ok(Precision::Fp16),
        (false, false) => match PRECISIONS.iter().find(|(key, _)| tables.is_auto(key)) {
            Some((key, precision)) => {
                tables.assume(key, true);
                Ok(*precision)
            }
            None => Ok(Precision::Fp32),
        },
    }
}

fn state(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    plan.job.precision = precision(tables, request)?;
    let undivided = tables.zero_stage("zero_optimization.stage")?.unwrap_or(0) == 0;
    let gradients = match tables.text("data_types.grad_accum_dtype")?.as_deref() {
        // bf16 alone, and only without ZeRO, is not added up in its own precision.
        None if plan.job.precision == Precision::Bf16 && undivided => Some(Precision::Fp32),
        None => None,
        Some("fp32") => Some(Precision::Fp32),
        Some("fp16") => Some(Precision::Fp16),
        Some("bf16") => Some(Precision::Bf16),
        Some(other) => {
            return Err(request.bad_text("data_types.grad_accum_dtype", other, "fp32, fp16 or bf16"));
        }
    };
    let of_stack = plan.stack.gradient_precision(plan.job.precision).base();
    plan.state.gradients = gradients.filter(|format| *format != of_stack);
    let momentum = tables.number("optimizer.params.momentum")?.unwrap_or(0.0);
    let kind = tables.text("optimizer.type")?.unwrap_or_else(|| "AdamW".into());
    plan.job.optimizer = match kind.to_lowercase().as_str() {
        "adam" => "adam".into(),
        "adamw" => "adamw".into(),
        "lamb" => "lamb".into(),
        "sgd" if momentum > 0.0 => "momentum".into(),
        "sgd" => "sgd".into(),
        "muon" => "muon".into(),
        "onebitadam" | "onebitlamb" | "zerooneadam" => {
            let allowed = "Adam, AdamW, Lamb, Muon or SGD: plans do not have compressed gradients";
            return Err(request.bad_text("optimizer.type", &kind, allowed));
        }
        _ => return Err(request.bad_text("optimizer.type", &kind, "Adam, AdamW, Lamb, Muon or SGD")),
    };
    Ok(())
}

fn zero(tables: &Tables, request: &Request, plan: &mut Plan) -> Result<(), SpecError> {
    let key = |name: &str| format!("zero_optimization.{name}");
    let stage = tables.zero_stage(&key("stage"))?.unwrap_or(0);
    let groups =
        tables.count(&key("mics_shard_size"), RANKS)?.filter(|size| *size < plan.mesh.weight_copies());
    let scheme = match stage {
        0 => "none",
        1 => "zero1",
        2 => "zero2",
        _ if groups.is_some() => "hsdp",
        _ => "zero3",
    };
    shard(plan, scheme);
    plan.mesh.shard = groups;
    if tables.get(&key("overlap_comm")).is_some() {
        plan.stack.overlap_gradient_reduction = tables.flag(&key("overlap_comm"))?;
    }
    let automatic =
        tables.is_auto(&key("reduce_bucket_size")).then_some(plan.model.hidden * plan.model.hidden);
    if let Some(size) = tables
        .count(&key("reduce_bucket_size"), BUCKET.or_zero())?
        .filter(|size| *size > 0)
        .or(automatic)
        .filter(|size| *size != plan.bucket_parameters())
    {
        let sourced = |value: usize| Sourced::new(value, "reduce_bucket_size");
        plan.stack.bucket_parameters = sourced(size);
        plan.stack.bucket_parameters_per_data_rank = sourced(0);
    }
    let place = |name: &str| -> Result<Option<Place>, SpecError> {
        let path = format!("{}.device", key(name));
        tables.text(&format!("{}.nvme_path", key(name)))?;
        tables.get(&format!("{}.pin_memory", key(name)));
        match tables.text(&path)?.as_deref() {
            None | Some("none") => Ok(None),
            Some("cpu") => Ok(Some(Place::Host)),
            Some("nvme") => Ok(Some(Place::Nvme)),
            Some(other) => Err(request.bad_text(&path, other, "none, cpu or nvme")),
        }
    };
    plan.offload.optimizer = place("offload_optimizer")?;
    plan.offload.parameters = place("offload_param")?;
    let part = tables.number(&key("offload_optimizer.ratio"))?.unwrap_or(1.0);
    if plan.offload.optimizer.is_some() {
        plan.offload.optimizer_fraction = part;
        // Gradients are offloaded with the optimizer if all of it is.
        plan.offload.gradients = (stage >= 2 && part == 1.0).then_some(Place::Host);
    }
    if let Some(taken) = offload_undivided(plan) {
        tables.assume(&key("stage"), taken);
    }
    Ok(())
}
