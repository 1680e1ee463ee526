//! Everything that can be wrong with what a person hands in.

use crate::catalog::files::folder;
use std::path::PathBuf;
use thiserror::Error;

/// Why an input was refused. Each message names what was given and what is allowed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A name that the catalog does not have.
    #[error("unknown {kind} `{name}`{}; `trainwright show {}` lists all", nearest_names(.nearest), folder(kind))]
    UnknownName {
        /// The kind of entry that was looked up: `model`, `cluster`, …
        kind: &'static str,
        /// The given value.
        name: String,
        /// The closest names that exist.
        nearest: Vec<String>,
    },
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// The message of the system.
        source: std::io::Error,
    },
    /// Text that is not the format it should be.
    #[error("{origin}: {message}")]
    Syntax {
        /// File name, or what the text was for.
        origin: String,
        /// The parser's message, with line and column where known.
        message: String,
    },
    /// A key that is missing.
    #[error("{origin}: `{key}` is missing; {expected}")]
    MissingKey {
        /// File name.
        origin: String,
        /// The key.
        key: String,
        /// What it should be.
        expected: String,
    },
    /// A key or an argument with a value that makes no sense.
    #[error("{origin}: `{key}` is {value}; {allowed}")]
    BadValue {
        /// File name, or `argument`.
        origin: String,
        /// The key or the argument.
        key: String,
        /// The given value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}

fn nearest_names(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(" (nearest: {})", names.join(", "))
}
