//! Gradient descent with momentum.

use super::Optimizer;
use crate::units::Bytes;

/// One fp32 moment.
pub struct Momentum;

impl Optimizer for Momentum {
    fn name(&self) -> &'static str {
        "momentum"
    }

    fn summary(&self) -> &'static str {
        "gradient descent with momentum, one fp32 moment"
    }

    fn source(&self) -> &'static str {
        "Polyak 1964; Sutskever et al. 2013"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::new(4.0)
    }
}
