//! A file with a line of JSON for each step.

use crate::error::CliError;
use crate::render::training::Quantity;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;

/// The file of `--metrics`.
pub struct JsonLines {
    file: File,
    path: String,
}

impl JsonLines {
    /// Opens it. A resumed run adds to it.
    ///
    /// # Errors
    /// `Writing`.
    pub fn open(path: &str, is_resumed: bool) -> Result<Self, CliError> {
        let mut options = OpenOptions::new();
        let options = if is_resumed { options.append(true) } else { options.write(true).truncate(true) };
        let file = options.create(true).open(path).map_err(|source| failed(path, source))?;
        Ok(Self { file, path: path.into() })
    }

    /// Adds a step.
    ///
    /// # Errors
    /// `Writing`.
    pub fn add(&mut self, step: usize, quantities: &[Quantity]) -> Result<(), CliError> {
        let mut line = Map::from_iter([("step".to_string(), json!(step))]);
        line.extend(quantities.iter().map(|quantity| (quantity.name.to_string(), value(quantity.value))));
        // One write for each line: a run that is killed leaves whole lines.
        let written = self.file.write_all(format!("{}\n", Value::Object(line)).as_bytes());
        written.map_err(|source| failed(&self.path, source))
    }
}

/// Large whole numbers, as bytes are, without a decimal point.
fn value(value: Option<f64>) -> Value {
    match value {
        Some(value) if value.fract() == 0.0 && value >= 1e6 => json!(value as u64),
        value => json!(value),
    }
}

fn failed(path: &str, source: std::io::Error) -> CliError {
    CliError::Writing { argument: "--metrics", path: path.into(), source }
}
