//! From arguments to a question for the planner or a plan. Errors name the arguments.

mod adapters;
pub mod calibration;
pub mod configuration;
pub mod data;
pub mod fleet;
pub mod launched;
pub mod metrics;
pub mod models;
pub mod network;
pub mod requests;
pub mod rl;
pub mod runnable;
pub mod serving;
pub mod trace;
pub mod what_if;

use crate::arguments::{PinArguments, QuestionArguments, RiskArguments, Space};
use crate::calls;
use crate::error::{CliError, refuse};
use crate::output;
pub use models::model;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trainwright_evidence::columns::UnknownColumn;
use trainwright_evidence::runs::Table;
use trainwright_planner::{Breadth, MemoryLimit, Order, Pins, Question, Risk};
use trainwright_spec::cluster::{Cluster, NetworkProfile};
use trainwright_spec::error::SpecError;
use trainwright_spec::experts::{Load, Routing};
use trainwright_spec::job::Job;
use trainwright_spec::limits::BLOCK_PASSES;
use trainwright_spec::model::Model;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::{
    Plan, ScheduleChoice, pieces_allowed, pipeline_allowed, sequence_allowed, tensor_degree_allowed,
};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::text::read_csv;
use trainwright_spec::schedule::{Custom, PipelineShape, schedule};
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Bytes;

/// Larger than any configuration or plan; it keeps a device file from filling the memory.
const MOST_BYTES: u64 = 64 << 20;

/// Standard input has one reader.
static STDIN_IS_READ: AtomicBool = AtomicBool::new(false);

/// The question to `plan`.
///
/// # Errors
/// The first argument that is invalid, alone or with the others.
pub fn question(
    arguments: &QuestionArguments,
    pins: &PinArguments,
    risk: &RiskArguments,
) -> Result<Question, CliError> {
    let question = unchecked(arguments, pins, risk)?;
    check_axes(&question)?;
    check(&question)?;
    calibrated(question, arguments)
}

/// The same on a cluster of which parts may be asked about: whether pinned axes suit the GPUs is left to the planner.
///
/// # Errors
/// As `question`.
fn question_on(
    cluster: Cluster,
    arguments: &QuestionArguments,
    pins: &PinArguments,
    risk: &RiskArguments,
) -> Result<Question, CliError> {
    let question = unchecked_on(cluster, arguments, pins, risk)?;
    check(&question)?;
    calibrated(question, arguments)
}

/// A question with its calibration.
fn calibrated(mut question: Question, arguments: &QuestionArguments) -> Result<Question, CliError> {
    let given = arguments.calibration.as_deref();
    calibration::calibrate(given, &mut question.cluster, &mut question.stack)?;
    question.risk.residuals = calibration::of(given, &question.cluster)?.residuals;
    Ok(question)
}

/// As `question`, without a calibration and without checks of how the parts go together.
fn unchecked(
    arguments: &QuestionArguments,
    choices: &PinArguments,
    risk: &RiskArguments,
) -> Result<Question, CliError> {
    unchecked_on(cluster(&arguments.cluster, &arguments.profile)?, arguments, choices, risk)
}

fn unchecked_on(
    cluster: Cluster,
    arguments: &QuestionArguments,
    choices: &PinArguments,
    risk: &RiskArguments,
) -> Result<Question, CliError> {
    let model = models::mapped(&arguments.model, &arguments.map)?;
    Ok(Question {
        job: Job {
            sequence: arguments.seq,
            global_batch: arguments.global_batch,
            precision: precision(arguments.precision, &cluster)?,
            optimizer: arguments.optimizer.clone(),
            gradient_clipping: !arguments.no_gradient_clipping,
            adapters: adapters::of(arguments, &model)?,
        },
        stack: Stack::from_name(&arguments.stack)
            .map_err(|error| CliError::of_input(Some("--stack"), error))?,
        pins: pins(choices)?,
        model,
        cluster,
        risk: Risk {
            residuals: Arc::default(),
            memory: match risk.memory_reserve {
                Some(reserve) => MemoryLimit::Reserve(reserve),
                None => MemoryLimit::Risk(risk.memory_risk),
            },
            order: risk.risk.map_or(Order::Expected, Order::Quantile),
            ..Risk::default()
        },
    })
}

/// A cluster, with the given profiles of its network and its GPUs.
pub fn cluster(reference: &str, profiles: &[String]) -> Result<Cluster, CliError> {
    let argument = Some("--cluster");
    let cluster = match reference {
        "-" => Cluster::from_toml(&text(argument, "-")?, "standard input"),
        name if calls::current().is_some_and(|call| call.input(name).is_some()) => {
            Cluster::from_toml(&text(argument, name)?, name)
        }
        reference => Cluster::reference(reference),
    };
    let cluster = cluster.map_err(|error| CliError::of_input(argument, error))?;
    profiles.iter().try_fold(cluster, |cluster, path| with_profile(cluster, path))
}

/// A cluster with the profile in a file replacing the cluster's: of kernels if the name ends in .csv, else of the network.
fn with_profile(cluster: Cluster, path: &str) -> Result<Cluster, CliError> {
    let text = text(Some("--profile"), path)?;
    // Standard input has no file ending.
    let is_table = path.ends_with(".csv") || (path == "-" && text.starts_with("gpu,"));
    let cluster = match is_table {
        true => cluster.with_device_profile(&text, path),
        false => {
            NetworkProfile::from_toml(&text, path).and_then(|profile| cluster.with_profile(profile, path))
        }
    };
    cluster.map_err(|error| CliError::of_input(Some("--profile"), error))
}

/// The tokens of each expert in a CSV, if they suit the plan.
fn with_load(plan: &Plan, path: &str) -> Result<Load, CliError> {
    let argument = Some("--expert-load");
    let load = Load::from_csv(&text(argument, path)?, path).and_then(|load| {
        let experts = Routing { load: load.clone(), ..plan.experts.clone() };
        Plan { experts, ..plan.clone() }.check(path).map(|()| load)
    });
    load.map_err(|error| CliError::of_input(argument, error))
}

/// The plan in a file, checked, with the profiles of its cluster and the tokens of each expert if they are given; `-` is standard input.
///
/// # Errors
/// `Reading`, or the file's fault with line or key.
pub fn plan(path: &str, profiles: &[String], expert_load: Option<&str>) -> Result<Plan, CliError> {
    let origin = if path == "-" { "standard input" } else { path };
    let plan = Plan::from_toml(&text(None, path)?, origin);
    let mut plan = plan.map_err(|error| CliError::of_input(None, error))?;
    for path in profiles {
        plan.cluster = with_profile(plan.cluster, path)?;
    }
    if let Some(path) = expert_load {
        plan.experts.load = with_load(&plan, path)?;
    }
    let allowed = simulation_allowed(plan.microbatches(), &plan.model)
        .and_then(|()| duration_allowed(&plan.model, &plan.job, &plan.cluster));
    match allowed {
        Ok(()) => Ok(plan),
        Err(allowed) => {
            let (key, value) = ("job.global_batch".into(), plan.job.global_batch.to_string());
            let source = SpecError::BadValue { origin: origin.into(), key, value, allowed };
            Err(CliError::of_input(None, source))
        }
    }
}

/// Gives a plan the schedule in a CSV as torch.distributed.pipelining writes it.
///
/// # Errors
/// `Reading`, or its fault, or why the plan cannot have it.
pub fn schedule_of(plan: &mut Plan, path: &str) -> Result<(), CliError> {
    let argument = Some("--schedule-csv");
    let text = text(argument, path)?;
    let refuse = |error| CliError::of_input(argument, error);
    let bad = |allowed: String| SpecError::BadValue {
        origin: path.into(),
        key: "schedule".into(),
        value: path.into(),
        allowed,
    };
    let lists = read_csv(&text, path).map_err(refuse)?;
    let custom = Custom::new(lists).map_err(|fault| refuse(bad(fault.to_string())))?;
    plan.schedule = ScheduleChoice::Actions(Box::new(custom));
    plan.check(path).map_err(refuse)
}

/// A table of runs; `-` is standard input.
///
/// # Errors
/// `Reading`, or a fault of the whole table.
pub fn table(path: &str) -> Result<Table, CliError> {
    let text = text(None, path)?;
    let table = Table::read(text.as_bytes());
    let table = table.map_err(|source| CliError::Table { path: path.into(), source })?;
    remark_unknown(path, &table.unknown_columns());
    Ok(table)
}

/// Says which columns of a table nothing is read from: a misspelt name must not pass for a blank column.
pub fn remark_unknown(path: &str, columns: &[UnknownColumn]) {
    if let Some(text) = UnknownColumn::remark(columns) {
        output::remark(&format!("{path}: {text}"));
    }
}

/// Checks that a step with this number of microbatches can be simulated op by op.
fn simulation_allowed(microbatches: usize, model: &Model) -> Result<(), String> {
    let blocks = model.layers();
    match microbatches.saturating_mul(blocks) > BLOCK_PASSES {
        true => Err(format!(
            "that is {microbatches} microbatches of {blocks} blocks, and at most {BLOCK_PASSES} passes of a \
             block are simulated"
        )),
        false => Ok(()),
    }
}

/// Whether a step takes less than a day if every GPU computes at its peak all the time. The simulator's clock ends
/// after 213 days.
fn duration_allowed(model: &Model, job: &Job, cluster: &Cluster) -> Result<(), String> {
    let flops = job.step_flops(model, AttentionCount::CausalHalved);
    let peak = cluster.peak(job.precision);
    let days = (flops / peak).get() / 86_400.0;
    match days > 1.0 {
        true => Err(format!(
            "a step would take {days:.0} days at the peak of all GPUs, and at most one day is simulated"
        )),
        false => Ok(()),
    }
}

/// The number format of matrix products: the given one if GPUs of every kind have it, else 16 bits where they have them.
fn precision(given: Option<Precision>, cluster: &Cluster) -> Result<Precision, CliError> {
    let lacks = |precision: &Precision| {
        cluster.kinds().map(|(_, node)| &node.gpu).find(|gpu| !gpu.peak.contains_key(precision))
    };
    let has = |precision: &Precision| lacks(precision).is_none();
    match given.map(|precision| (precision, lacks(&precision))) {
        Some((precision, None)) => Ok(precision),
        Some((precision, Some(gpu))) => {
            let known: Vec<&str> = gpu.peak.keys().map(|precision| precision.name()).collect();
            let allowed = format!("{} computes in {}", gpu.name, known.join(", "));
            Err(refuse("--precision", precision, allowed))
        }
        None => Ok([Precision::Bf16, Precision::Fp16].into_iter().find(has).unwrap_or(Precision::Fp32)),
    }
}

fn pins(arguments: &PinArguments) -> Result<Pins, CliError> {
    let mut pins = Pins {
        tensor: arguments.tensor,
        pipeline: arguments.pipeline,
        data: arguments.data,
        virtual_stages: arguments.virtual_stages,
        micro_batch: arguments.micro_batch,
        schedule: arguments.schedule.clone(),
        sequence_parallel: arguments.sequence_parallel,
        data_sharding: arguments.data_sharding.clone(),
        recompute: arguments.recompute,
        only: arguments.pin.clone(),
        never: arguments.forbid.clone(),
        breadth: match arguments.space {
            Space::Auto => Breadth::Auto,
            Space::Core => Breadth::Core,
            Space::Usual => Breadth::Usual,
            Space::Whole => Breadth::Whole,
        },
    };
    if let Some(path) = &arguments.choices {
        let file = choices(path)?;
        pins.only.extend(pairs(file.pin));
        pins.never.extend(pairs(file.forbid));
    }
    Ok(pins)
}

/// Pins and prohibitions in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Choices {
    #[serde(default)]
    pin: BTreeMap<String, Written>,
    #[serde(default)]
    forbid: BTreeMap<String, Written>,
}

/// A value of a choice, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Flag(bool),
    Text(String),
    Several(Vec<Written>),
}

impl Written {
    fn values(self) -> Vec<String> {
        match self {
            Written::Number(number) => vec![number.to_string()],
            Written::Flag(flag) => vec![flag.to_string()],
            Written::Text(text) => vec![text],
            Written::Several(several) => several.into_iter().flat_map(Written::values).collect(),
        }
    }
}

fn pairs(table: BTreeMap<String, Written>) -> impl Iterator<Item = (String, String)> {
    table
        .into_iter()
        .flat_map(|(key, written)| written.values().into_iter().map(move |value| (key.clone(), value)))
}

fn choices(path: &str) -> Result<Choices, CliError> {
    let text = text(Some("--choices"), path)?;
    toml::from_str(&text).map_err(|error| {
        let message = error.message().replace('\n', " ");
        CliError::of_input(Some("--choices"), SpecError::Syntax { origin: path.into(), message })
    })
}

/// Refuses pinned axes that do not suit the number of GPUs.
fn check_axes(Question { cluster, pins, .. }: &Question) -> Result<(), CliError> {
    let axes = [("--tensor", pins.tensor), ("--pipeline", pins.pipeline), ("--data", pins.data)];
    let given: Vec<(&str, usize)> =
        axes.into_iter().filter_map(|(name, size)| size.map(|size| (name, size))).collect();
    let product = given.iter().try_fold(1usize, |product, (_, size)| product.checked_mul(*size));
    let gpus = cluster.gpus();
    let exact = given.len() == axes.len();
    if product.is_none_or(|product| !gpus.is_multiple_of(product) || (exact && product != gpus)) {
        let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
        let sizes: Vec<String> = given.iter().map(|(_, size)| size.to_string()).collect();
        let rule = if exact { "must be" } else { "must divide" };
        return Err(refuse(
            &names.join("` x `"),
            sizes.join(" x "),
            format!("it {rule} the {gpus} GPUs of {}", cluster.name),
        ));
    }
    Ok(())
}

/// Faults that need no search to find: the planner would find no candidate, and could not say why.
fn check(question: &Question) -> Result<(), CliError> {
    let Question { model, cluster, job, pins, .. } = question;
    sequence_allowed(model, job.sequence).map_err(|allowed| refuse("--seq", job.sequence, allowed))?;

    let least = cluster.kinds().map(|(_, node)| node.gpu.memory.value).reduce(Bytes::min);
    if let (MemoryLimit::Reserve(reserve), Some(least)) = (question.risk.memory, least)
        && reserve >= least
    {
        return Err(refuse("--memory-reserve", reserve, format!("it must be less than a GPU's {least}")));
    }
    if let Some(tensor) = pins.tensor {
        tensor_degree_allowed(model, tensor).map_err(|allowed| refuse("--tensor", tensor, allowed))?;
        if pins.sequence_parallel == Some(true) && !job.sequence.is_multiple_of(tensor) {
            let allowed = format!("with `--sequence-parallel true` it must divide by `--tensor` {tensor}");
            return Err(refuse("--seq", job.sequence, allowed));
        }
    }
    if let Some(pipeline) = pins.pipeline {
        let stages = pipeline.saturating_mul(pins.virtual_stages.unwrap_or(1));
        pipeline_allowed(model, stages).map_err(|allowed| refuse("--pipeline", pipeline, allowed))?;
    }
    if let Some(choice) = pins.recompute {
        pieces_allowed(model, &[choice])
            .map_err(|(choice, allowed)| refuse("--recompute", choice, allowed))?;
    }
    if let (Some(name), Some(virtual_stages)) = (&pins.schedule, pins.virtual_stages) {
        let ranks = pins.pipeline.unwrap_or(2);
        // One microbatch for each rank suits every schedule with this number of stages.
        let shape = PipelineShape { ranks, virtual_stages, microbatches: ranks };
        let schedule = schedule(name).map_err(|error| CliError::of_input(Some("--schedule"), error))?;
        schedule.check(shape).map_err(|allowed| refuse("--schedule", name, allowed))?;
    }
    let sequences = pins.data.unwrap_or(1).saturating_mul(pins.micro_batch.unwrap_or(1));
    if !job.global_batch.is_multiple_of(sequences) {
        let allowed = match (pins.data, pins.micro_batch) {
            (Some(data), Some(micro_batch)) => {
                format!("it must divide by `--data` {data} x `--micro-batch` {micro_batch} = {sequences}")
            }
            (Some(data), None) => format!("it must divide by `--data` {data}"),
            _ => format!("it must divide by `--micro-batch` {sequences}"),
        };
        return Err(refuse("--global-batch", job.global_batch, allowed));
    }
    // The fewest that there can be: without a pinned microbatch all sequences of a rank may be one.
    let microbatches = match pins.micro_batch {
        Some(micro_batch) => job.global_batch / pins.data.unwrap_or(cluster.gpus()) / micro_batch,
        None => 1,
    };
    simulation_allowed(microbatches, model)
        .and_then(|()| duration_allowed(model, job, cluster))
        .map_err(|allowed| refuse("--global-batch", job.global_batch, allowed))
}

/// The text of a file.
pub fn text(argument: Option<&'static str>, path: &str) -> Result<String, CliError> {
    let read = bytes(argument, path)?;
    String::from_utf8(read).map_err(|_| {
        let source = io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8");
        CliError::Reading { argument, path: path.into(), source }
    })
}

/// All bytes of a file.
///
/// # Errors
/// `Reading`, also where there are too many.
pub fn bytes(argument: Option<&'static str>, path: &str) -> Result<Vec<u8>, CliError> {
    bytes_up_to(MOST_BYTES, argument, path)
}

fn bytes_up_to(most: u64, argument: Option<&'static str>, path: &str) -> Result<Vec<u8>, CliError> {
    let failed = |source| CliError::Reading { argument, path: path.into(), source };
    let call = calls::current();
    let in_memory = call.as_ref().and_then(|call| call.input(path));
    let input: Box<dyn Read> = match path {
        _ if in_memory.is_some() => Box::new(in_memory.unwrap_or_default()),
        "-" if call.is_some() => return Err(refuse(argument.unwrap_or("-"), "-", "name a file")),
        "-" if STDIN_IS_READ.swap(true, Ordering::Relaxed) => {
            let allowed = "standard input is read already: name a file";
            return Err(refuse(argument.unwrap_or("-"), "-", allowed));
        }
        "-" => Box::new(io::stdin().lock()),
        path => Box::new(File::open(path).map_err(failed)?),
    };
    let mut text = Vec::new();
    let size = input.take(most + 1).read_to_end(&mut text).map_err(failed)? as u64;
    if size > most {
        let most = format!("larger than {} MiB", most >> 20);
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, most)));
    }
    Ok(text)
}
