//! The folders of a run's checkpoints.
//!
//! ```text
//! DIR/step-00000200/model.safetensors      the weights, with Hugging Face's names
//!                   optimizer.safetensors  the optimizer's moments of each of them
//!                   config.json            the model, if Hugging Face has such
//!                   tokenizer.json         the tokenizer, if one was used
//!                   trainer.json           step, seed and place in the data; checksums of itself and of the tensors
//! ```
//!
//! A folder is written under another name, put on the disk and then renamed: one that has its name is complete.

use super::tensors::beside;
use crate::comm::transport::Remark;
use crate::error::CheckpointError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of a checkpoint that is not in tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)] // A damaged key would be one.
pub(crate) struct Trainer {
    /// Steps that were done.
    pub step: usize,
    /// From which initial weights and the order of the data were made.
    pub seed: u64,
    /// The optimizer's name.
    pub optimizer: String,
    /// Sequences that were read.
    pub sequences: usize,
    /// Tokens of each of them.
    pub sequence: usize,
    /// The fingerprint of the data.
    pub data: String,
    /// The tokenizer, or its fingerprint.
    pub tokenizer: String,
    /// CRC-32 of each file of tensors, by its name; empty in checkpoints of earlier versions.
    #[serde(default)]
    pub checksums: BTreeMap<String, String>,
    /// CRC-32 of this file with zeros in the place of this number, its last one; `None` in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

impl Trainer {
    /// Its file, with a checksum.
    fn to_text(&self) -> String {
        let unsummed = Self { checksum: Some(UNSUMMED.into()), ..self.clone() };
        let text = serde_json::to_string_pretty(&unsummed).expect("a state is JSON") + "\n";
        let checksum = crc32fast::hash(text.as_bytes());
        let at = text.rfind(UNSUMMED).expect("it was just written");
        format!("{}{checksum:08x}{}", &text[..at], &text[at + UNSUMMED.len()..])
    }

    /// Reads the file of `to_text`, and those of earlier versions, which have no checksum of their own.
    ///
    /// # Errors
    /// `Damaged` if it is none, or another one than was written.
    fn from_text(file: &Path, text: &[u8]) -> Result<Self, CheckpointError> {
        let damaged = |error: &dyn Display| CheckpointError::damaged(file, error);
        let trainer: Self = serde_json::from_slice(text).map_err(|error| damaged(&error))?;
        let Some(expected) = &trainer.checksum else { return Ok(trainer) };
        let text = std::str::from_utf8(text).map_err(|error| damaged(&error))?;
        let Some(at) = text.rfind(expected) else {
            return Err(damaged(&"its checksum is spelt in another way than it was written"));
        };
        let unsummed = format!("{}{UNSUMMED}{}", &text[..at], &text[at + expected.len()..]);
        let found = format!("{:08x}", crc32fast::hash(unsummed.as_bytes()));
        match *expected == found {
            true => Ok(trainer),
            false => Err(damaged(&format!("its checksum is {found} and should be {expected}"))),
        }
    }
}

/// What stands in the place of a file's own checksum while that is computed.
const UNSUMMED: &str = "00000000";

/// The file of `Trainer`.
const TRAINER: &str = "trainer.json";
/// What stands before the number of a step.
const PREFIX: &str = "step-";

/// The name of a step's folder.
fn name(step: usize) -> String {
    format!("{PREFIX}{step:08}")
}

/// The complete checkpoints of a folder, by step.
fn complete(folder: &Path) -> Result<Vec<(usize, PathBuf)>, CheckpointError> {
    let read = |error: io::Error| CheckpointError::read(folder, &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.parse().ok());
        if let Some(step) = step.filter(|_| path.join(TRAINER).is_file()) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The step of the last complete checkpoint of a folder; `None` if there is none, or no folder.
pub fn last_checkpoint(folder: &Path) -> Option<usize> {
    complete(folder).ok()?.last().map(|(step, _)| *step)
}

/// A checkpoint whose files have their checksums.
pub(crate) struct Last {
    pub path: PathBuf,
    pub trainer: Trainer,
    /// Why later ones are not used.
    pub damaged: Vec<CheckpointError>,
}

/// The last undamaged checkpoint of a folder, or the folder itself if it is one.
///
/// # Errors
/// `Nothing` if there is none; what is wrong with the last one if all are damaged.
pub(crate) fn last(folder: &Path) -> Result<Last, CheckpointError> {
    if folder.join(TRAINER).is_file() {
        let trainer = verified(folder)?;
        return Ok(Last { path: folder.to_path_buf(), trainer, damaged: Vec::new() });
    }
    let mut damaged = Vec::new();
    for (_, path) in complete(folder)?.into_iter().rev() {
        match verified(&path) {
            Ok(trainer) => return Ok(Last { path, trainer, damaged }),
            Err(error) => damaged.push(error),
        }
    }
    let nothing = CheckpointError::Nothing { path: folder.display().to_string(), expected: TRAINER };
    Err(damaged.into_iter().next().unwrap_or(nothing))
}

/// As `last`, with a remark for each damaged checkpoint that is passed over.
///
/// # Errors
/// As `last`.
pub(crate) fn last_folder(folder: &Path, remark: Remark) -> Result<(PathBuf, Trainer), CheckpointError> {
    let Last { path, trainer, damaged } = last(folder)?;
    for error in damaged {
        (remark.0)(&format!("{error}: an earlier checkpoint is used"));
    }
    Ok((path, trainer))
}

/// The state of a checkpoint whose state and files of tensors are as they were written.
fn verified(path: &Path) -> Result<Trainer, CheckpointError> {
    let file = path.join(TRAINER);
    let text = fs::read(&file).map_err(|error| CheckpointError::read(&file, &error))?;
    let trainer = Trainer::from_text(&file, &text)?;
    for (name, expected) in &trainer.checksums {
        let file = beside(&file, name)?;
        let (_, found) = checksum_of(&file).map_err(|error| CheckpointError::read(&file, &error))?;
        if *expected != format!("{found:08x}") {
            let reason = format!("its checksum is {found:08x} and should be {expected}");
            return Err(CheckpointError::damaged(&file, reason));
        }
    }
    Ok(trainer)
}

/// Length and CRC-32 of a file.
pub(super) fn checksum_of(path: &Path) -> io::Result<(u64, u32)> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 1 << 20]);
    let (mut length, mut hasher) = (0, crc32fast::Hasher::new());
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((length, hasher.finalize())),
            read => {
                hasher.update(&buffer[..read]);
                length += read as u64;
            }
        }
    }
}

/// Makes a folder ready for the checkpoints of steps behind `done`: what a killed run left half written goes, and so do
/// damaged checkpoints of later steps.
pub(crate) fn prepare(folder: &Path, done: usize) -> Result<(), CheckpointError> {
    let write = |error: io::Error| CheckpointError::write(folder, &error);
    fs::create_dir_all(folder).map_err(write)?;
    sweep(folder).map_err(write)?;
    for (step, path) in complete(folder)?.into_iter().rev().take_while(|(step, _)| *step > done) {
        if verified(&path).is_ok() {
            return Err(CheckpointError::Differs {
                path: path.display().to_string(),
                key: "step".into(),
                value: step.to_string(),
                allowed: format!("the run goes on from step {done}: resume that one, or save elsewhere"),
            });
        }
        remove(folder, step, &path).map_err(write)?;
    }
    Ok(())
}

/// Removes a checkpoint. It loses its name first: half of it is no checkpoint.
fn remove(folder: &Path, step: usize, path: &Path) -> io::Result<()> {
    let hidden = folder.join(format!(".{}", name(step)));
    fs::rename(path, &hidden)?;
    fs::remove_dir_all(hidden)
}

/// Removes folders that are still, or again, under a temporary name.
pub(crate) fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(&format!(".{PREFIX}"))) {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// Folders to which this process writes checkpoints. Who holds it keeps others from beginning one.
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn folders() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often to try to remove what a rank may still be writing to.
const ATTEMPTS: usize = 20;

/// Removes checkpoints that are half written, for a program that ends now: no other can be begun any more.
pub fn abandon_checkpoints() {
    let folders = folders();
    for folder in folders.iter() {
        // A file that comes while others go makes it fail.
        let _ = (0..ATTEMPTS).find(|_| sweep(folder).is_ok());
    }
    std::mem::forget(folders);
}

/// A checkpoint that is being written. If it is given up, nothing of it stays.
pub(crate) struct Draft<'a> {
    folder: &'a Path,
    step: usize,
    /// Where its files go.
    pub path: PathBuf,
}

impl<'a> Draft<'a> {
    /// For a step's checkpoint in `folder`.
    pub fn new(folder: &'a Path, step: usize) -> Result<Self, CheckpointError> {
        let path = folder.join(format!(".{}", name(step)));
        let mut folders = folders();
        folders.insert(folder.to_path_buf());
        fs::create_dir(&path).map_err(|error| CheckpointError::write(&path, &error))?;
        Ok(Self { folder, step, path })
    }

    /// Writes a small file.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), CheckpointError> {
        let path = self.path.join(name);
        let write = || {
            fs::write(&path, content)?;
            File::open(&path)?.sync_all()
        };
        write().map_err(|error| CheckpointError::write(&path, &error))
    }

    /// Gives it its name; only the last `keep` checkpoints stay.
    pub fn finish(self, trainer: &Trainer, keep: usize) -> Result<(), CheckpointError> {
        self.write(TRAINER, trainer.to_text().as_bytes())?;
        let rename = || {
            File::open(&self.path)?.sync_all()?;
            fs::rename(&self.path, self.folder.join(name(self.step)))?;
            File::open(self.folder)?.sync_all()
        };
        // Whoever ends the program meanwhile waits until nothing is half removed.
        let _folders = folders();
        rename().map_err(|error| CheckpointError::write(&self.path, &error))?;
        let mut known = complete(self.folder)?;
        known.truncate(known.len().saturating_sub(keep));
        let mut old = known.into_iter();
        old.try_for_each(|(step, path)| remove(self.folder, step, &path))
            .map_err(|error| CheckpointError::write(self.folder, &error))
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // After `finish` there is nothing of that name.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each bit of the file: what is still a state is another one than was written, or its checksum is.
    #[test]
    fn any_flipped_bit_of_a_state_is_found() {
        let trainer = Trainer {
            step: 20,
            seed: 7,
            optimizer: "adamw".into(),
            sequences: 160,
            sequence: 16,
            data: "5 a0".into(),
            tokenizer: "bytes".into(),
            checksums: [("model.safetensors".to_string(), "0badcafe".to_string())].into(),
            checksum: None,
        };
        let (file, text) = (Path::new("trainer.json"), trainer.to_text());
        let read = Trainer::from_text(file, text.as_bytes()).unwrap();
        assert_eq!(Trainer { checksum: None, ..read }, trainer);
        for bit in 0..8 * text.len() {
            let mut flipped = text.clone().into_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = Trainer::from_text(file, &flipped);
            let text = String::from_utf8_lossy(&flipped);
            assert!(matches!(read, Err(CheckpointError::Damaged { .. })), "bit {bit} of {text}: {read:?}");
        }
        // An earlier version wrote none.
        let earlier = serde_json::to_string_pretty(&trainer).unwrap();
        assert_eq!(Trainer::from_text(file, earlier.as_bytes()).unwrap(), trainer);
    }
}
