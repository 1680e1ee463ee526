//! A file with a line of JSON for each step, written as it happens.

use crate::error::CliError;
use crate::render::training;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use trainwright_executor::StepReport;
use trainwright_spec::plan::Plan;

/// The file of `--metrics`.
pub struct Metrics(Option<(File, String)>);

impl Metrics {
    /// Opens it, if it is wanted. A resumed run adds to it.
    ///
    /// # Errors
    /// `Writing`.
    pub fn open(path: Option<&str>, is_resumed: bool) -> Result<Self, CliError> {
        let Some(path) = path else { return Ok(Self(None)) };
        let mut options = OpenOptions::new();
        let options = if is_resumed { options.append(true) } else { options.write(true).truncate(true) };
        let file = options.create(true).open(path).map_err(|source| failed(path, source))?;
        Ok(Self(Some((file, path.into()))))
    }

    /// Adds a step.
    ///
    /// # Errors
    /// `Writing`.
    pub fn add(&mut self, plan: &Plan, report: &StepReport) -> Result<(), CliError> {
        let Some((file, path)) = &mut self.0 else { return Ok(()) };
        let mut line = training::metrics(plan, report);
        line["peak_resident_bytes"] = peak_resident_bytes().into();
        // One write for each line: a run that is killed leaves whole lines.
        file.write_all(format!("{line}\n").as_bytes()).map_err(|source| failed(path, source))
    }
}

/// The most memory that this process has held; `None` where the system does not say.
fn peak_resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn failed(path: &str, source: std::io::Error) -> CliError {
    CliError::Writing { argument: "--metrics", path: path.into(), source }
}
