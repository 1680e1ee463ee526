//! What a run writes for other tools, step by step as it happens.
//!
//! ```text
//!               ┌─► json_lines   --metrics      a line for each step; `curves` draws it
//! StepReport ───┼─► event_file   --tensorboard  scalars for TensorBoard
//!               └─► open_metrics --openmetrics  the last values, for a node exporter
//! ```

mod event_file;
mod json_lines;
mod open_metrics;

use crate::arguments::LogArguments;
use crate::error::CliError;
use crate::render::training::{self, Quantity};
use event_file::{EventFile, now};
use json_lines::JsonLines;
use open_metrics::OpenMetrics;
use std::fs;
use trainwright_executor::StepReport;
use trainwright_spec::plan::Plan;

/// The files that are wanted.
#[derive(Default)]
pub struct StepLogs {
    json_lines: Option<JsonLines>,
    event_file: Option<EventFile>,
    open_metrics: Option<OpenMetrics>,
}

impl StepLogs {
    /// Opens them. A resumed run adds to what is there.
    ///
    /// # Errors
    /// `Writing`.
    pub fn open(arguments: &LogArguments, is_resumed: bool) -> Result<Self, CliError> {
        let LogArguments { metrics, tensorboard, openmetrics } = arguments;
        let json_lines = metrics.as_deref().map(|path| JsonLines::open(path, is_resumed)).transpose()?;
        let event_file =
            tensorboard.as_deref().map(|folder| EventFile::create(folder, is_resumed, now)).transpose()?;
        let open_metrics = openmetrics.clone().map(OpenMetrics::new);
        Ok(Self { json_lines, event_file, open_metrics })
    }

    /// Adds a step; `is_printed` if a line of it is printed, too.
    ///
    /// # Errors
    /// `Writing`.
    pub fn add(&mut self, plan: &Plan, report: &StepReport, is_printed: bool) -> Result<(), CliError> {
        if self.json_lines.is_none() && self.event_file.is_none() && self.open_metrics.is_none() {
            return Ok(());
        }
        let mut quantities = training::quantities(plan, report);
        quantities.push(Quantity {
            name: "peak_resident_bytes",
            tag: "memory/peak_resident_bytes",
            help: "The most memory that the process has held, in bytes.",
            value: peak_resident_bytes().map(|bytes| bytes as f64),
        });
        self.json_lines.as_mut().map_or(Ok(()), |file| file.add(report.step, &quantities))?;
        self.event_file.as_mut().map_or(Ok(()), |file| file.add(report.step, &quantities))?;
        self.open_metrics
            .as_mut()
            .map_or(Ok(()), |file| file.add((plan, report.step), quantities, is_printed))
    }
}

/// The most memory that this process has held; `None` where the system does not say.
fn peak_resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
