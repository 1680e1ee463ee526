//! Stochastic gradient descent.

use super::Optimizer;
use crate::units::Bytes;

/// Plain gradient descent: no moments.
pub struct Sgd;

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn summary(&self) -> &'static str {
        "stochastic gradient descent, no state beyond the weights"
    }

    fn source(&self) -> &'static str {
        "Robbins and Monro 1951"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::ZERO
    }
}
