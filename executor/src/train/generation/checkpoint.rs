//! The folder that a model is generated with: a checkpoint of a run, or a Hugging Face folder.

use super::text::TextCoder;
use crate::comm::transport::Remark;
use crate::error::{CheckpointError, RunError};
use crate::train::checkpoint::{PositionLimit, last_folder};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use trainwright_spec::model::Model;
use trainwright_spec::model::hf::from_hugging_face;

/// A folder with weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFolder {
    /// Where `model.safetensors` or its index is.
    pub folder: PathBuf,
    /// The model of its `config.json`; `None` if it has none.
    pub model: Option<Model>,
    /// The most tokens of a sequence, if its `config.json` states them.
    pub limit: Option<PositionLimit>,
    /// The step of the run that wrote it, if one did.
    pub step: Option<usize>,
    /// Whether each byte of the run's data was a token.
    is_of_bytes: bool,
}

impl ModelFolder {
    /// A folder of weights, or the last undamaged checkpoint in it.
    ///
    /// # Errors
    /// `Checkpoint` if there are no weights, or `config.json` cannot be read.
    pub fn open(path: &Path, remark: Remark) -> Result<Self, RunError> {
        let has_weights = ["model.safetensors", "model.safetensors.index.json"]
            .iter()
            .any(|name| path.join(name).is_file());
        let of_run = (!has_weights || path.join("trainer.json").is_file()).then(|| last_folder(path, remark));
        let of_run = of_run.transpose()?;
        let folder = of_run.as_ref().map_or_else(|| path.to_path_buf(), |(folder, _)| folder.clone());
        let config = folder.join("config.json");
        let (mut model, mut limit) = (None, None);
        if config.exists() {
            let text = fs::read_to_string(&config).map_err(|error| CheckpointError::read(&config, &error))?;
            let damaged = |error: String| CheckpointError::damaged(&config, error);
            let read = from_hugging_face(&text, &config.display().to_string());
            model = Some(read.map_err(|error| damaged(error.to_string()))?);
            let known: Value = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
            limit = PositionLimit::of(&known, &config.display().to_string());
        }
        let trainer = of_run.map(|(_, trainer)| trainer);
        Ok(Self {
            folder,
            model,
            limit,
            step: trainer.as_ref().map(|trainer| trainer.step),
            is_of_bytes: trainer.is_some_and(|trainer| trainer.tokenizer == "bytes"),
        })
    }

    /// Its tokenizer: `given`, or its `tokenizer.json`, or bytes if those were the run's tokens; `None` if there is none.
    ///
    /// # Errors
    /// `Tokenizer` if the file cannot be read or is none.
    pub fn tokenizer(&self, given: Option<&Path>) -> Result<Option<TextCoder>, RunError> {
        let beside = self.folder.join("tokenizer.json");
        match given.or_else(|| beside.is_file().then_some(&*beside)) {
            Some(path) => TextCoder::open(Some(path)).map(Some),
            None if self.is_of_bytes => TextCoder::open(None).map(Some),
            None => Ok(None),
        }
    }

    /// Refuses sequences that are longer than the positions of `config.json`.
    ///
    /// # Errors
    /// `Checkpoint` with the file and both numbers.
    pub fn check_length(&self, longest: usize) -> Result<(), RunError> {
        Ok(self.limit.as_ref().map_or(Ok(()), |limit| limit.check(longest))?)
    }
}
