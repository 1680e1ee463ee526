//! A plan as configuration files of other tools.
//!
//! ```text
//! Plan ─► an Exporter of EXPORTERS ─► files, and the choices that they cannot express
//! ```
//!
//! `fields` lists every choice that a plan makes. An exporter marks the choices that its files express; every other one is
//! reported as an omission, so that no choice is lost in silence. Nothing here knows what a choice costs.

mod accelerate_fsdp;
mod coverage;
mod deepspeed;
pub(crate) mod fields;
mod maxtext;
mod megatron;
mod megatron_bridge;
mod megatron_lm;
mod nemo;

mod shared;
mod slurm;
mod torch_pipelining;
mod torchtitan;
mod yaml;

pub(crate) use megatron::stages::MODULES;
pub(crate) use torchtitan::{FLAVORS, NO_LIMIT, SCHEDULES};

pub use fields::{FIELDS, Field, Omission};

use coverage::Coverage;
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
    fn files(&self, plan: &Plan, coverage: &mut Coverage) -> Vec<ExportedFile>;

    /// The beginning of a comment line in the main file; `None` if the format has no comments.
    fn comment(&self) -> Option<&'static str> {
        Some("#")
    }
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
}

/// Every tool. A new one is a file in `export/` and a line here.
pub static EXPORTERS: &[&dyn Exporter] = &[
    &megatron_lm::MegatronLm,
    &megatron_bridge::MegatronBridge,
    &nemo::NeMo,
    &deepspeed::DeepSpeed,
    &torchtitan::TorchTitan,
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
    let mut coverage = Coverage::default();
    let mut files = exporter.files(plan, &mut coverage);
    let omissions = coverage.omissions(plan);
    if let (Some(mark), Some(main)) = (exporter.comment(), files.first_mut()) {
        let head = match omissions.is_empty() {
            true => String::new(),
            false => format!("{mark} Not said here, because {} has no option for it:\n", exporter.name()),
        };
        let lines: String = omissions.iter().map(|omission| format!("{mark}   {omission}\n")).collect();
        // A script's first line names its interpreter.
        let at = if main.text.starts_with("#!") { main.text.find('\n').map_or(0, |end| end + 1) } else { 0 };
        main.text.insert_str(at, &(head + &lines));
    }
    Exported { files, omissions }
}
