//! What a run begins with, so that processes with different files notice it, wherever each of them keeps these.

use super::folder::{self, Last, checksum_of};
use crate::error::CheckpointError;
use crate::train::settings::Start;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a start leads to, as a text that is equal if the weights are.
///
/// # Errors
/// `Read` if a file cannot be read, `Nothing` if there is no checkpoint.
pub(crate) fn content(start: &Start) -> Result<String, CheckpointError> {
    match start {
        Start::Anew => Ok("new weights".into()),
        Start::Weights(folder) => Ok(format!("the weights with checksum {}", checksum(folder)?)),
        Start::Resume(folder) => {
            let Last { path, trainer, .. } = folder::last(folder)?;
            Ok(format!("step {} with checksum {}", trainer.step, checksum(&path)?))
        }
    }
}

/// CRC-32 of the names, lengths and contents of a folder's tensor files.
fn checksum(folder: &Path) -> Result<String, CheckpointError> {
    let read = |path: &Path, error: io::Error| CheckpointError::read(path, &error);
    let entries = fs::read_dir(folder).map_err(|error| read(folder, error))?;
    let paths: BTreeSet<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(|error| read(folder, error))?;
    let mut hasher = crc32fast::Hasher::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|ending| ending == "safetensors")) {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let (length, checksum) = checksum_of(path).map_err(|error| read(path, error))?;
        hasher.update(&length.to_le_bytes());
        hasher.update(&checksum.to_le_bytes());
    }
    Ok(format!("{:08x}", hasher.finalize()))
}
