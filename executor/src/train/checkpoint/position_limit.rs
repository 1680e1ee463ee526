//! The most tokens of a sequence that a model's `config.json` states beside the model: rotary positions have no table that ends.

use crate::error::CheckpointError;
use serde_json::Value;

/// Where Hugging Face has it.
pub(super) const KEY: &str = "max_position_embeddings";

/// The most tokens of a sequence, and the configuration that states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionLimit {
    /// The configuration's file, or the catalog's entry.
    pub origin: String,
    /// Tokens of the longest sequence.
    pub positions: usize,
}

impl PositionLimit {
    /// That of a configuration; `None` if it states none.
    pub fn of(config: &Value, origin: &str) -> Option<Self> {
        // A model of several kinds of input keeps its language model's keys in a separate table.
        let value = config.get(KEY).or_else(|| config.get("text_config")?.get(KEY));
        let positions = usize::try_from(value?.as_u64()?).ok()?;
        Some(Self { origin: origin.into(), positions })
    }

    /// Refuses sequences of more than `positions` tokens.
    ///
    /// # Errors
    /// `Differs` with file, key, value and the tokens of the sequence.
    pub fn check(&self, longest: usize) -> Result<(), CheckpointError> {
        if longest <= self.positions {
            return Ok(());
        }
        Err(CheckpointError::Differs {
            path: self.origin.clone(),
            key: KEY.into(),
            value: self.positions.to_string(),
            allowed: format!(
                "a sequence of {longest} tokens is longer: at most {} are allowed",
                self.positions
            ),
        })
    }
}
