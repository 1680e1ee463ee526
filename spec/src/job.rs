//! How much is trained, and in what precision.

use crate::adapters::Adapters;
use crate::model::flops::AttentionCount;
use crate::model::weights::Weight;
use crate::model::{BlockRun, Model};
use crate::optimizer::{Optimizer, optimizer};
use crate::precision::Precision;
use crate::units::Flops;
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
    /// What is trained where the model's weights are frozen; left out: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Adapters>,
}

impl Job {
    /// With AdamW and clipped gradients.
    pub fn new(sequence: usize, global_batch: usize, precision: Precision) -> Self {
        let optimizer = "adamw".into();
        Self { sequence, global_batch, precision, optimizer, gradient_clipping: true, adapters: None }
    }

    /// Tokens in a step.
    pub fn tokens(&self) -> usize {
        self.sequence * self.global_batch
    }

    /// Parameters that it trains of a model.
    pub fn trained_parameters(&self, model: &Model) -> u64 {
        self.adapters.as_ref().map_or_else(|| model.parameters(), |adapters| adapters.parameters(model))
    }

    /// Those of them in matrices of blocks that the optimizer updates as such.
    pub fn trained_matrices(&self, model: &Model) -> u64 {
        if self.optimizer().of_matrices().is_none() {
            return 0;
        }
        let of_run = |run: &BlockRun| {
            let weights = match &self.adapters {
                None => run.block.weights(model.hidden),
                Some(adapters) => adapters.block_weights(&run.block, model.hidden),
            };
            let matrices = weights.iter().filter(|weight| weight.multiplied().is_some());
            matrices.map(Weight::total).fold(0, u64::saturating_add).saturating_mul(run.count as u64)
        };
        model.blocks.iter().map(of_run).fold(0, u64::saturating_add)
    }

    /// Model FLOPs of one step: for each sequence those of the forward pass and, backward, of each product's gradients that
    /// training needs. Of frozen weights there are none, so that a token takes 4 FLOPs a parameter instead of 6.
    pub fn step_flops(&self, model: &Model, count: AttentionCount) -> Flops {
        let of_sequence = match &self.adapters {
            None => model.training_flops(self.sequence, count),
            Some(adapters) => {
                let core = model.core_flops(self.sequence, count);
                let products = model.forward_flops(self.sequence, count) - core;
                let trained = Flops::new(2.0 * adapters.parameters(model) as f64 * self.sequence as f64);
                2.0 * products + 3.0 * (core + trained)
            }
        };
        self.global_batch as f64 * of_sequence
    }

    /// The optimizer's costs.
    ///
    /// # Panics
    /// If the name is unknown, which `Plan::check` has excluded.
    pub fn optimizer(&self) -> &'static dyn Optimizer {
        optimizer(&self.optimizer).expect("a checked job has a known optimizer")
    }
}
