//! Where a run begins: with which weights and at which step.

use super::folder::{self, Trainer};
use super::hugging_face;
use super::names::{Stored, stored};
use super::position_limit::PositionLimit;
use super::tensors::TensorReader;
use crate::error::CheckpointError;
use crate::train::data::tokens::Tokens;
use crate::train::parameters::{Layer, Parameter};
use crate::train::settings::{Settings, Start};
use crate::train::state::Loaded;
use std::fs;
use std::path::Path;
use trainwright_spec::model::Model;
use trainwright_spec::plan::Plan;

/// The suffix of a tensor's name for each of its moments.
pub(crate) fn moment_names(count: u64) -> &'static [&'static str] {
    match count {
        0 => &[],
        1 => &["momentum_buffer"],
        _ => &["exp_avg", "exp_avg_sq"],
    }
}

/// Where a run begins.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// Steps that were done before.
    pub step: usize,
    /// Sequences that were read before.
    pub sequences: usize,
    /// From which initial weights and the order of the data are made.
    pub seed: u64,
    /// The most tokens of a sequence, where the folder's configuration or the settings state it.
    pub limit: Option<PositionLimit>,
    weights: Option<TensorReader>,
    moments: Option<TensorReader>,
}

impl Beginning {
    /// Opens what a run begins with and checks that it suits.
    pub fn open(plan: &Plan, tokens: &Tokens, settings: &Settings) -> Result<Self, CheckpointError> {
        let seed = settings.seed;
        let limit = settings.position_limit.clone();
        let fresh = Self { step: 0, sequences: 0, seed, limit, weights: None, moments: None };
        match &settings.start {
            Start::Anew => Ok(fresh),
            Start::Weights(folder) => {
                let stated = hugging_face::check(folder, &plan.model)?;
                let limit = stated.or(fresh.limit);
                check_tokenizer(folder, tokens)?;
                Ok(Self { limit, weights: Some(TensorReader::open(folder, "model")?), ..fresh })
            }
            Start::Resume(folder) => {
                let (path, trainer) = folder::last_folder(folder, settings.remark)?;
                check_trainer(&path, &trainer, plan, tokens)?;
                if trainer.step >= settings.steps {
                    return Err(CheckpointError::Differs {
                        path: path.join("trainer.json").display().to_string(),
                        key: "step".into(),
                        value: trainer.step.to_string(),
                        allowed: format!("the run is to end with step {}: name a later one", settings.steps),
                    });
                }
                let stated = hugging_face::check(&path, &plan.model)?;
                let open = |name| TensorReader::open(&path, name).map(Some);
                Ok(Self {
                    step: trainer.step,
                    sequences: trainer.sequences,
                    seed: trainer.seed,
                    limit: stated.or(fresh.limit),
                    weights: open("model")?,
                    moments: open("optimizer")?,
                })
            }
        }
    }

    /// A parameter with `moments` moments; `None` if the run begins with new weights.
    pub fn load(
        &self,
        model: &Model,
        layer: Layer,
        parameter: &Parameter,
        moments: u64,
    ) -> Result<Option<Loaded>, CheckpointError> {
        let Some(weights) = &self.weights else { return Ok(None) };
        let tensors = stored(model, parameter.home(layer), parameter.name, parameter.full_shape);
        let read = |reader: &TensorReader, ending: &str| {
            let mut full = vec![0.0; parameter.full_shape[0] * parameter.full_shape[1]];
            for tensor in &tensors {
                tensor.put(&reader.read(&spellings(tensor, ending), tensor)?, &mut full);
            }
            Ok(full)
        };
        let weights = read(weights, "")?;
        let names = moment_names(moments).iter();
        let moments = match &self.moments {
            None => Vec::new(),
            Some(reader) => names.map(|name| read(reader, &format!(".{name}"))).collect::<Result<_, _>>()?,
        };
        Ok(Some(Loaded { weights, moments }))
    }
}

/// A tensor's name with an ending, and the same without the part before the layers, as bare models have it.
fn spellings(tensor: &Stored, ending: &str) -> Vec<String> {
    let name = &tensor.name;
    let bare = name.strip_prefix("transformer.").or_else(|| name.strip_prefix("model.")).unwrap_or(name);
    vec![format!("{name}{ending}"), format!("{bare}{ending}")]
}

/// Checks that a run can go on where another one ended.
fn check_trainer(
    path: &Path,
    trainer: &Trainer,
    plan: &Plan,
    tokens: &Tokens,
) -> Result<(), CheckpointError> {
    let rules = [
        ("optimizer", &trainer.optimizer, plan.job.optimizer.clone(), "the plan has"),
        ("sequence", &trainer.sequence.to_string(), plan.job.sequence.to_string(), "the plan has"),
        ("tokenizer", &trainer.tokenizer, tokens.tokenizer().name(), "the data was made with"),
        ("data", &trainer.data, tokens.fingerprint().into(), "the data given has the fingerprint"),
    ];
    match rules.into_iter().find(|(_, found, expected, _)| *found != expected) {
        None => Ok(()),
        Some((key, found, expected, who)) => Err(CheckpointError::Differs {
            path: path.join("trainer.json").display().to_string(),
            key: key.into(),
            value: found.clone(),
            allowed: format!("{who} {expected}: give the same to resume, or begin anew with its weights"),
        }),
    }
}

/// Checks that a folder's tokenizer, if it has one, is the one that made the tokens.
fn check_tokenizer(folder: &Path, tokens: &Tokens) -> Result<(), CheckpointError> {
    let path = folder.join("tokenizer.json");
    let (Ok(found), Some(used)) = (fs::read(&path), tokens.tokenizer().file()) else { return Ok(()) };
    let same = serde_json::from_slice::<serde_json::Value>(&found).ok()
        == serde_json::from_slice::<serde_json::Value>(used).ok();
    match same {
        true => Ok(()),
        false => Err(CheckpointError::Differs {
            path: path.display().to_string(),
            key: "tokenizer".into(),
            value: "another one than the data was made with".into(),
            allowed: "the weights belong to the numbers of that tokenizer: give that one".into(),
        }),
    }
}
