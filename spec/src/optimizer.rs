//! Optimizers by what they cost: bytes of state and bytes moved for each parameter.

mod adam;
mod lamb;
mod lars;
mod matrices;
mod momentum;
mod muon;
mod sgd;
mod shampoo;
mod sophia;
mod state;

pub use matrices::{MatrixProducts, MatrixRule};
pub use state::{MasterWeights, Moments, StateBytes, StatePrecision};

use crate::catalog::nearest;
use crate::error::SpecError;
use crate::precision::Precision;
use crate::units::Bytes;

/// The cost of one optimizer. Its mathematics is the executor's business.
pub trait Optimizer: Sync {
    /// The name in jobs and arguments.
    fn name(&self) -> &'static str;

    /// One line for `show optimizers`.
    fn summary(&self) -> &'static str;

    /// Where it is from.
    fn source(&self) -> &'static str;

    /// Bytes of moments for each parameter, without the master weights; of matrices only where they have no other rule.
    fn moment_bytes(&self) -> Bytes;

    /// How it updates the matrices of blocks, if not element by element as embeddings, output layer and vectors.
    fn of_matrices(&self) -> Option<&dyn MatrixRule> {
        None
    }

    /// Passes over the batch that it needs beside those of each step, forward and backward, in the mean of steps; most steps have
    /// none of them.
    fn extra_passes(&self) -> f64 {
        0.0
    }

    /// Bytes read and written for each parameter beyond gradient, weights and one pass over the moments: the
    /// norms of layer-wise optimizers need a second pass.
    fn extra_traffic(&self) -> Bytes {
        Bytes::ZERO
    }
}

/// The parameters for which an optimizer has one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The matrices of blocks, where the optimizer updates them as such.
    Matrices,
    /// All that is updated element by element.
    Elements,
}

/// Bytes of state for each parameter: moments, and fp32 master weights where training is in 16 bits.
pub fn state_bytes(optimizer: &dyn Optimizer, rule: Rule, precision: Precision) -> Bytes {
    StateBytes::new(optimizer, rule, precision, precision, &StatePrecision::default()).optimizer()
}

/// Every optimizer. A new one is a file in `optimizer/` and a line here.
pub static OPTIMIZERS: &[&dyn Optimizer] = &[
    &sgd::Sgd,
    &momentum::Momentum,
    &adam::Adam,
    &adam::AdamW,
    &lamb::Lamb,
    &lars::Lars,
    &muon::Muon,
    &sophia::Sophia,
    &shampoo::Shampoo,
];

/// The optimizer of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn optimizer(name: &str) -> Result<&'static dyn Optimizer, SpecError> {
    OPTIMIZERS.iter().copied().find(|optimizer| optimizer.name() == name).ok_or_else(|| {
        SpecError::UnknownName {
            kind: "optimizer",
            name: name.into(),
            nearest: nearest(name, OPTIMIZERS.iter().map(|optimizer| optimizer.name())),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_traffic_per_parameter() {
        // master 4 + moments; fp32 training keeps no second copy.
        let check = |name: &str, precision, state: f64, read: f64, written: f64| {
            let optimizer = optimizer(name).unwrap();
            let rule = optimizer.of_matrices().map_or(Rule::Elements, |_| Rule::Matrices);
            assert_eq!(state_bytes(optimizer, rule, precision), Bytes::new(state), "{name}");
            // Gradients of 4 bytes.
            let default = StatePrecision::default();
            let bytes = StateBytes::new(optimizer, rule, precision, Precision::Fp32, &default);
            assert_eq!(bytes.update_traffic(), (Bytes::new(read), Bytes::new(written)), "{name}");
        };
        check("sgd", Precision::Fp32, 0.0, 8.0, 4.0);
        check("sgd", Precision::Bf16, 4.0, 8.0, 6.0);
        check("momentum", Precision::Bf16, 8.0, 12.0, 10.0);
        check("adam", Precision::Bf16, 12.0, 16.0, 14.0);
        check("adamw", Precision::Fp32, 8.0, 16.0, 12.0);
        check("lamb", Precision::Bf16, 12.0, 28.0, 14.0);
        check("lars", Precision::Bf16, 8.0, 20.0, 10.0);
        check("sophia", Precision::Bf16, 12.0, 16.0, 14.0);
        // Of matrices.
        check("muon", Precision::Bf16, 8.0, 12.0, 10.0);
        check("shampoo", Precision::Bf16, 28.0, 32.0, 30.0);
    }
}
