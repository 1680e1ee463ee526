//! A plan from configuration files of other tools.
//!
//! ```text
//! text, cluster, what the text lacks ─► an Importer of IMPORTERS ─► Plan, and unread keys
//! ```
//!
//! An importer reads what the exporter of the same name writes, and users' files. Missing values are the defaults of the
//! tool; those that matter are listed. The plan is checked like every plan.

mod accelerate;
mod arguments;
mod arithmetic;
mod deepspeed;
mod keys;
mod llm_foundry;
mod maxtext;
mod megatron_bridge;
mod megatron_lm;
mod megatron_yaml;
mod nanotron;
mod nemo;
mod tables;
mod torchtitan;
mod unique;

pub use keys::FileKey;

use trainwright_spec::catalog::nearest;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::data::{Divided, data_scheme};
use trainwright_spec::error::SpecError;
use trainwright_spec::job::Job;
use trainwright_spec::model::{Model, preset};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::{AttentionKernel, Stack};

/// A tool whose files become plans.
pub trait Importer: Sync {
    /// The name in arguments.
    fn name(&self) -> &'static str;

    /// One line on what is read.
    fn summary(&self) -> &'static str;

    /// The stack of the catalog that runs as the tool does.
    fn stack(&self) -> &'static str;

    /// Reads a plan that may not be legal.
    ///
    /// # Errors
    /// `Syntax`, `MissingKey` or `BadValue` with the key or argument.
    fn draft(&self, request: &Request) -> Result<Imported, SpecError>;

    /// Reads a plan.
    ///
    /// # Errors
    /// As `draft`, and what `Plan::check` refuses, with the file's key for the choice if it is known.
    fn read(&self, request: &Request) -> Result<Imported, SpecError> {
        let imported = self.draft(request)?;
        let checked = imported.plan.check(request.origin);
        checked.map_err(|fault| keys::in_file(fault, &imported.keys))?;
        Ok(imported)
    }
}

/// A file, and what it lacks.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The file's text.
    pub text: &'a str,
    /// Its name in messages.
    pub origin: &'a str,
    /// The cluster.
    pub cluster: Cluster,
    /// The software; choices of the file change it.
    pub stack: Stack,
    /// The model, if it is not the one that the file describes.
    pub model: Option<Model>,
    /// Tokens in a sequence, if not as in the file.
    pub sequence: Option<usize>,
    /// The text of the schedule's CSV, if the file names one.
    pub schedule: Option<String>,
    /// Keys or arguments of the file with values that replace or complete those in it.
    pub settings: Vec<(String, String)>,
}

/// A plan, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The plan.
    pub plan: Plan,
    /// Arguments or keys of the file that the plan does not reflect.
    pub unread: Vec<String>,
    /// What the file leaves open, with the value that was taken.
    pub assumed: Vec<String>,
    /// The keys of the file that decide the plan's choices.
    pub keys: Vec<FileKey>,
}

/// Every tool. A new one is a file in `import/` and a line here.
pub static IMPORTERS: &[&dyn Importer] = &[
    &megatron_lm::MegatronLm,
    &megatron_bridge::MegatronBridge,
    &nemo::NeMo,
    &deepspeed::DeepSpeed,
    &torchtitan::TorchTitan,
    &accelerate::Accelerate,
    &maxtext::MaxText,
    &llm_foundry::LlmFoundry,
    &nanotron::Nanotron,
];

/// The importer of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn importer(name: &str) -> Result<&'static dyn Importer, SpecError> {
    let named = IMPORTERS.iter().copied().find(|importer| importer.name() == name);
    named.ok_or_else(|| SpecError::UnknownName {
        kind: "importer",
        name: name.into(),
        nearest: nearest(name, IMPORTERS.iter().map(|importer| importer.name())),
    })
}

impl Request<'_> {
    fn bad(&self, key: &str, value: impl ToString, allowed: impl Into<String>) -> SpecError {
        let (key, value) = (key.into(), value.to_string());
        SpecError::BadValue { origin: self.origin.into(), key, value, allowed: allowed.into() }
    }

    /// `bad` with a text of the file, which is quoted.
    fn bad_text(&self, key: &str, text: &str, allowed: impl Into<String>) -> SpecError {
        self.bad(key, arguments::quoted(text), allowed)
    }

    fn missing(&self, key: &str, expected: impl Into<String>) -> SpecError {
        SpecError::MissingKey { origin: self.origin.into(), key: key.into(), expected: expected.into() }
    }

    /// A plan of `model` on one GPU, with nothing chosen: the start of every importer.
    fn blank(&self, model: Model, sequence: usize) -> Plan {
        Plan {
            stages: Vec::new(),
            ..Plan::plain(
                model,
                self.stack.clone(),
                self.cluster.clone(),
                Job::new(sequence, 1, Precision::Fp32),
            )
        }
    }

    /// The model that was given beside a file which does not say it.
    fn given_model(&self, tool: &str) -> Result<Model, SpecError> {
        let model = self.model.clone();
        model.ok_or_else(|| self.missing("model", format!("{tool} does not say it: give --model")))
    }

    /// The sequence length that was given beside a file which does not say it.
    fn given_sequence(&self, tool: &str) -> Result<usize, SpecError> {
        self.sequence.ok_or_else(|| self.missing("sequence", format!("{tool} does not say it: give --seq")))
    }

    /// The data ranks that are left when `others` ranks share each sequence; `keys` name the settings.
    fn data_ranks(&self, others: usize, keys: &str) -> Result<usize, SpecError> {
        let gpus = self.cluster.gpus();
        match others > 0 && gpus.is_multiple_of(others) {
            true => Ok(gpus / others),
            false => {
                let name = &self.cluster.name;
                Err(self.bad(keys, others, format!("it must divide the {gpus} GPUs of {name}")))
            }
        }
    }
}

/// Blocks of each of `parts` stages; the first ones take the remainder.
fn even(blocks: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|stage| blocks / parts + usize::from(stage < blocks % parts)).collect()
}

/// Chooses a data scheme, which the software of a file that names it has.
fn shard(plan: &mut Plan, scheme: &str) {
    plan.data_sharding = scheme.into();
    if !plan.stack.has_data_scheme(scheme) {
        match scheme {
            "zero1" => plan.stack.sharded_optimizer = true,
            _ => plan.stack.data_schemes.push(scheme.into()),
        }
    }
}

/// Makes a plan of state that is divided as well as offloaded, which plans do not have: an offloaded optimizer stays
/// with the ranks that divide it, and weights are whole. Returns what was taken instead, if anything.
fn offload_undivided(plan: &mut Plan) -> Option<String> {
    let offload = &mut plan.offload;
    let beside = offload.optimizer.is_some() || offload.parameters.is_some() || offload.gradients.is_some();
    let divided = plan.mesh.weight_copies() > 1
        && data_scheme(&plan.data_sharding).is_ok_and(|scheme| scheme.divides() > Divided::Optimizer);
    if !beside || !divided {
        return None;
    }
    let fetched = offload.parameters.take().is_some();
    if offload.optimizer.is_none() {
        offload.gradients = None;
        return Some("nothing offloaded: plans offload parameters where no rank divides them".into());
    }
    plan.mesh.shard = None;
    let scheme = plan.data_sharding.clone();
    shard(plan, "zero1");
    let parameters = if fetched { ", parameters on the GPU," } else { "" };
    Some(format!("zero1{parameters} instead of {scheme}: plans offload an optimizer where weights are whole"))
}

/// PyTorch's context parallelism runs the fused kernels of scaled_dot_product_attention.
fn fuse_shared_attention(plan: &mut Plan) {
    plan.stack.attention = AttentionKernel::Flash2;
}

/// Stages of `counts` blocks with one recomputation for all.
fn stages(counts: &[usize], choice: Recompute) -> Vec<StageBlocks> {
    counts.iter().map(|count| StageBlocks(vec![choice; *count])).collect()
}

/// The model with the name of the preset that equals it; with its name if there is none.
fn named(model: Model) -> Model {
    let equals_preset = |name: &&str| {
        let preset = preset::preset(name);
        preset.is_ok_and(|preset| Model { name: model.name.clone(), ..preset } == model)
    };
    match trainwright_spec::catalog::names("models").into_iter().find(equals_preset) {
        Some(name) => Model { name: name.into(), ..model },
        None => model,
    }
}
