//! A file of events in TensorBoard's folder.

use crate::error::CliError;
use crate::render::training::Quantity;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use trainwright_formats::tensorboard::Event;

/// The file of this run in the folder of `--tensorboard`.
pub struct EventFile {
    file: File,
    path: String,
    /// Whether the run goes on with an earlier one, whose later steps no longer count.
    is_resumed: bool,
}

impl EventFile {
    /// Creates it beside those of earlier runs.
    ///
    /// # Errors
    /// `Writing`.
    pub fn create(folder: &str, is_resumed: bool) -> Result<Self, CliError> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let name = format!("events.out.tfevents.{:010}.{host}.{}", now() as u64, std::process::id());
        let path = Path::new(folder).join(name).display().to_string();
        let created = fs::create_dir_all(folder).and_then(|()| File::create_new(&path));
        let file = created.map_err(|source| failed(&path, source))?;
        let mut created = Self { file, path, is_resumed };
        created.write(&Event::version(now()))?;
        Ok(created)
    }

    /// Adds a step.
    ///
    /// # Errors
    /// `Writing`.
    pub fn add(&mut self, step: usize, quantities: &[Quantity]) -> Result<(), CliError> {
        if std::mem::take(&mut self.is_resumed) {
            self.write(&Event::restart(now(), step))?;
        }
        let values = quantities.iter().filter_map(|quantity| Some((quantity.tag, quantity.value?)));
        self.write(&Event::scalars(now(), step, values))
    }

    fn write(&mut self, event: &Event) -> Result<(), CliError> {
        self.file.write_all(&event.record()).map_err(|source| failed(&self.path, source))
    }
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn failed(path: &str, source: std::io::Error) -> CliError {
    CliError::Writing { argument: "--tensorboard", path: path.into(), source }
}
