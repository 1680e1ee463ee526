//! A plan as configuration files of other tools.
//!
//! ```text
//! Plan ─► an Exporter of EXPORTERS ─► files, and the choices that they cannot express
//! ```
//!
//! `fields` lists every choice that a plan makes. An exporter marks the choices that its files express; every other one is
//! reported as an omission with its effect, so that no choice is lost in silence. What was written is read back by the
//! importer of the same files, and every choice that is not omitted must come back (`read_back`). Nothing here knows what
//! a choice costs.

mod accelerate_fsdp;
mod coverage;
mod deepspeed;
pub(crate) mod fields;
mod maxtext;
mod megatron;
mod megatron_bridge;
mod megatron_lm;
mod nemo;
mod read_back;
mod shared;
mod slurm;
mod torch_pipelining;
mod torchtitan;
mod yaml;

pub(crate) use maxtext::model::MODELS as MAXTEXT_MODELS;
pub(crate) use megatron::stages::MODULES;
pub(crate) use torchtitan::flavors::FLAVORS;
pub(crate) use torchtitan::{NO_LIMIT, SCHEDULES};

pub use fields::{CHANGES, Effect, FIELDS, Field, Omission};

use crate::details::Details;
use coverage::Coverage;
use serde_json::Value;
use std::collections::BTreeMap;
use trainwright_spec::catalog::nearest;
use trainwright_spec::error::SpecError;
use trainwright_spec::plan::Plan;

/// A tool that a plan can be written for.
pub trait Exporter: Sync {
    /// The name in arguments.
    fn name(&self) -> &'static str;

    /// One line on what is written.
    fn summary(&self) -> &'static str;

    /// Which version of the tool reads it.
    fn source(&self) -> &'static str;

    /// Writes the files, the main one first, and marks in `coverage` the fields that they express.
    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile>;

    /// The importer that reads the main file back; `None` if there is none.
    fn reader(&self) -> Option<&'static str> {
        Some(self.name())
    }

    /// Settings of the files that no plan has and that `Request::settings` may give.
    fn settings(&self) -> &'static [&'static str] {
        &[]
    }

    /// The beginning of a comment line in the main file; `None` if the format has no comments.
    fn comment(&self) -> Option<&'static str> {
        Some("#")
    }
}

/// What is written.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// What a plan does not say about its model; `None` if it is not known.
    pub details: Option<Details>,
    /// Settings of the tool that no plan has, by their names.
    pub settings: BTreeMap<String, String>,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// A plan as another tool reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The main file first.
    pub files: Vec<ExportedFile>,
    /// The choices of the plan that no file expresses.
    pub omissions: Vec<Omission>,
    /// What else differs from the plan or is not known.
    pub remarks: Vec<String>,
}

impl Exported {
    /// The omissions that would train something else, or not run.
    pub fn faults(&self) -> Vec<&Omission> {
        self.omissions.iter().filter(|omission| omission.effect == Effect::Training).collect()
    }
}

impl<'a> Request<'a> {
    /// With the details of the catalog's model, if the plan has one.
    pub fn new(plan: &'a Plan) -> Self {
        Self { plan, details: Details::of_catalog(&plan.model), settings: BTreeMap::new() }
    }

    /// The details of the model; those of a plain model if they are not known.
    pub fn details(&self) -> Details {
        self.details.clone().unwrap_or_default()
    }
}

/// Every tool. A new one is a file in `export/` and a line here.
pub static EXPORTERS: &[&dyn Exporter] = &[
    &megatron_lm::MegatronLm,
    &megatron_bridge::MegatronBridge,
    &nemo::NeMo,
    &deepspeed::DeepSpeed,
    &torchtitan::TorchTitan,
    &torchtitan::TorchTitanPython,
    &torch_pipelining::TorchPipelining,
    &accelerate_fsdp::AccelerateFsdp,
    &maxtext::MaxText,
    &slurm::Slurm,
];

/// The exporter of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn exporter(name: &str) -> Result<&'static dyn Exporter, SpecError> {
    let named = EXPORTERS.iter().copied().find(|exporter| exporter.name() == name);
    named.ok_or_else(|| SpecError::UnknownName {
        kind: "exporter",
        name: name.into(),
        nearest: nearest(name, EXPORTERS.iter().map(|exporter| exporter.name())),
    })
}

/// Writes a plan for a tool. Omissions are comments at the head of the main file, if its format has comments.
pub fn export(plan: &Plan, exporter: &dyn Exporter) -> Exported {
    write(&Request::new(plan), exporter)
}

/// Writes a plan with what is known beside it.
pub fn write(request: &Request, exporter: &dyn Exporter) -> Exported {
    let mut coverage = Coverage::default();
    let mut files = exporter.files(request, &mut coverage);
    read_back::check(request.plan, exporter, &files, &mut coverage);
    let omissions = coverage.omissions(request.plan);
    let mut remarks = coverage.remarks();
    let elsewhere = |omission: &Omission| {
        omission.effect == Effect::Elsewhere
            && omission.fields.iter().any(|(key, _)| key.starts_with("model."))
    };
    if request.details.is_none() && !omissions.iter().any(elsewhere) {
        remarks.push(UNKNOWN.into());
    }
    if let (Some(mark), Some(main)) = (exporter.comment(), files.first_mut()) {
        let mut head = String::new();
        let mut block = |title: String, lines: Vec<String>| {
            if !lines.is_empty() {
                head += &format!("{mark} {title}:\n");
                lines.iter().for_each(|line| head += &format!("{mark}   {line}\n"));
            }
        };
        let listed = |kinds: &[Effect]| -> Vec<String> {
            let of_kind = omissions.iter().filter(|omission| kinds.contains(&omission.effect));
            of_kind.map(|omission| omission.to_string()).collect()
        };
        block("To be said elsewhere".into(), listed(&[Effect::Elsewhere]));
        let title = format!("Not said here, because {} has no option for it", exporter.name());
        block(title, listed(&[Effect::Speed, Effect::Training]));
        block("Besides".into(), remarks.clone());
        // A script's first line names its interpreter.
        let at = if main.text.starts_with("#!") { main.text.find('\n').map_or(0, |end| end + 1) } else { 0 };
        main.text.insert_str(at, &head);
    }
    let exported = Exported { files, omissions, remarks };
    match exporter.comment() {
        Some(_) => exported,
        None => told_in_json(exported),
    }
}

/// What is said of a model that the catalog does not have.
const UNKNOWN: &str = "the plan does not say how its model scales rotary positions, limits scores or weighs experts, and \
                       the catalog does not know it: --model with its config.json does";

/// JSON has no comments: what changes the training is a key that its tool does not read.
fn told_in_json(mut exported: Exported) -> Exported {
    let faults: Vec<String> = exported.faults().iter().map(|fault| fault.to_string()).collect();
    if let Some(main) = exported.files.first_mut()
        && !faults.is_empty()
        && let Ok(Value::Object(mut table)) = serde_json::from_str(&main.text)
    {
        table.insert(JSON_COMMENT.into(), faults.into());
        main.text = serde_json::to_string_pretty(&table).expect("a table with text keys") + "\n";
    }
    exported
}

/// The key of remarks in JSON.
pub(crate) const JSON_COMMENT: &str = "_comment";
