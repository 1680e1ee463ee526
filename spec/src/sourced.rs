//! A number together with where it is from.

use serde::{Deserialize, Serialize};

/// A value and its source. In TOML: `{ value = "80 GiB", source = "NVIDIA A100 datasheet, 2021" }`.
///
/// A bare value is allowed in a person's own files; the catalog's tests ask for a source beside every number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sourced<T> {
    /// The value, in base units; text with a unit is read as well.
    pub value: T,
    /// Where it is from.
    #[serde(default)]
    pub source: String,
}
