//! How much is trained, and in what precision.

use crate::optimizer::{Optimizer, optimizer};
use crate::precision::Precision;
use serde::{Deserialize, Serialize};

/// The training job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Tokens in a sequence.
    pub sequence: usize,
    /// Sequences in a step, over all ranks.
    pub global_batch: usize,
    /// Number format of the matrix products.
    pub precision: Precision,
    /// Name of the optimizer.
    pub optimizer: String,
    /// Whether the gradients' global norm is clipped, so that no rank updates before all have their gradients.
    pub gradient_clipping: bool,
}

impl Job {
    /// With AdamW and clipped gradients.
    pub fn new(sequence: usize, global_batch: usize, precision: Precision) -> Self {
        Self { sequence, global_batch, precision, optimizer: "adamw".into(), gradient_clipping: true }
    }

    /// Tokens in a step.
    pub fn tokens(&self) -> usize {
        self.sequence * self.global_batch
    }

    /// The optimizer's costs.
    ///
    /// # Panics
    /// If the name is unknown, which `Plan::check` has excluded.
    pub fn optimizer(&self) -> &'static dyn Optimizer {
        optimizer(&self.optimizer).expect("a checked job has a known optimizer")
    }
}
