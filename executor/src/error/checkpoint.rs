//! What is wrong with a checkpoint.

use std::io;
use std::path::Path;
use thiserror::Error;

/// Why a checkpoint cannot be used or written.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum CheckpointError {
    /// A file that cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// A file that cannot be written; the checkpoints from before are as they were.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// A file that is cut off or no such file at all.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: String,
        /// What does not fit.
        reason: String,
    },
    /// A tensor that is not there.
    #[error("{path} has no tensor `{tensor}`, which the plan's model has")]
    Missing {
        /// The file or folder.
        path: String,
        /// Its name.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error("{path}: tensor `{tensor}` has the shape {found:?}, the plan's model wants {expected:?}")]
    Shape {
        /// The file.
        path: String,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// That of the model.
        expected: Vec<usize>,
    },
    /// Something that must be as it was.
    #[error("{path}: `{key}` is {value}; {allowed}")]
    Differs {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// What stands there.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A folder without a checkpoint.
    #[error("{path} has no complete checkpoint: a folder step-N with {expected}")]
    Nothing {
        /// The folder.
        path: String,
        /// The files that make it complete.
        expected: &'static str,
    },
}

impl CheckpointError {
    /// A file that cannot be read.
    pub(crate) fn read(path: &Path, error: &io::Error) -> Self {
        Self::Read { path: path.display().to_string(), reason: reason(error) }
    }

    /// A file that cannot be written.
    pub(crate) fn write(path: &Path, error: &io::Error) -> Self {
        Self::Write { path: path.display().to_string(), reason: reason(error) }
    }

    /// A file that is not what it should be.
    pub(crate) fn damaged(path: &Path, reason: impl ToString) -> Self {
        Self::Damaged { path: path.display().to_string(), reason: reason.to_string() }
    }
}

/// What the system said, without its error number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
