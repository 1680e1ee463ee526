//! Tokens per expert as they were counted in a run.

use super::Load;
use crate::error::SpecError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tokens that each expert of a layer got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTokens {
    /// Index of the block in the model.
    pub layer: usize,
    /// By expert.
    pub tokens: Vec<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    layer: usize,
    expert: usize,
    tokens: u64,
}

/// Experts are numbered up to here: beyond it a number is a slip of the pen.
const MOST: usize = 100_000;

impl Load {
    /// Reads a CSV with the columns `layer,expert,tokens`, rows in any order; rows of the same expert are summed, and
    /// an expert without a row has none up to the last that has one. `origin` names the file in messages.
    ///
    /// # Errors
    /// `Syntax` with the line, or `BadValue` for an expert's number that makes no sense.
    pub fn from_csv(text: &str, origin: &str) -> Result<Load, SpecError> {
        let mut layers: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for row in csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes()).deserialize() {
            let Row { layer, expert, tokens } = row.map_err(|error: csv::Error| SpecError::Syntax {
                origin: origin.into(),
                message: error.to_string().replace('\n', " "),
            })?;
            if expert >= MOST {
                return Err(SpecError::BadValue {
                    origin: origin.into(),
                    key: "expert".into(),
                    value: expert.to_string(),
                    allowed: format!("it must be less than {MOST}"),
                });
            }
            let counts = layers.entry(layer).or_default();
            counts.resize(counts.len().max(expert + 1), 0);
            counts[expert] = counts[expert].saturating_add(tokens);
        }
        let layers = layers.into_iter().map(|(layer, tokens)| LayerTokens { layer, tokens }).collect();
        Ok(Load::Trace { layers })
    }
}
