//! LARS: momentum with a trust ratio per layer.

use super::Optimizer;
use crate::units::Bytes;

/// One moment; a pass over weights and gradients takes their norms first.
pub struct Lars;

impl Optimizer for Lars {
    fn name(&self) -> &'static str {
        "lars"
    }

    fn summary(&self) -> &'static str {
        "momentum scaled by the ratio of weight norm to gradient norm of each layer"
    }

    fn source(&self) -> &'static str {
        "You et al. 2017, arXiv 1708.03888"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::new(4.0)
    }

    /// Weight and gradient are read once more, in fp32, for their norms.
    fn extra_traffic(&self) -> Bytes {
        Bytes::new(8.0)
    }
}
