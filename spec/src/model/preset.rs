//! The models that ship with the program, one file each in `spec/catalog/models`.
//!
//! A file holds a Hugging Face configuration and so is read like a user's file:
//!
//! ```text
//! source = "where the shape and the counts are from"
//! published_parameters = 124439808     # optional: exact, checked by the tests
//! published_size = "117M"              # optional: as printed, checked to its last digit
//!
//! [config]
//! model_type = "gpt2"
//! …
//! ```

use super::{Model, hf};
use crate::catalog;
use crate::error::SpecError;
use serde::Deserialize;
use serde_json::{Map, Value};

/// One file of the catalog.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Where the shape and the counts are from.
    pub source: String,
    /// The exact number of parameters, where it is known.
    pub published_parameters: Option<u64>,
    /// The number of parameters as its paper prints it, `175B`, where no exact one is known.
    pub published_size: Option<String>,
    /// The keys of the Hugging Face configuration. TOML has no `null`: such keys are left out.
    config: Map<String, Value>,
}

/// The preset model of that name, case ignored.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn preset(name: &str) -> Result<Model, SpecError> {
    let name = name.to_lowercase();
    hf::from_keys(&file(&name)?.config, &name)
}

/// Name and file of every preset, in alphabetical order.
pub fn presets() -> impl Iterator<Item = (&'static str, Preset)> {
    catalog::names("models").into_iter().map(|name| {
        let preset = file(name).unwrap_or_else(|error| panic!("the catalog's files can be read: {error}"));
        (name, preset)
    })
}

fn file(name: &str) -> Result<Preset, SpecError> {
    let text = catalog::text("model", name)?;
    toml::from_str(text).map_err(|error| SpecError::Syntax {
        origin: format!("catalog/models/{name}.toml"),
        message: error.to_string().trim_end().replace('\n', " "),
    })
}
