//! LAMB: Adam with a trust ratio per layer.

use super::Optimizer;
use crate::units::Bytes;

/// Adam's moments; the update is written, its norm and the weight's taken, and both read again.
pub struct Lamb;

impl Optimizer for Lamb {
    fn name(&self) -> &'static str {
        "lamb"
    }

    fn summary(&self) -> &'static str {
        "Adam scaled by the ratio of weight norm to update norm of each layer"
    }

    fn source(&self) -> &'static str {
        "You et al. 2019, arXiv 1904.00962"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::new(8.0)
    }

    /// The fp32 update written and read once more, and the weight read once more for its norm.
    fn extra_traffic(&self) -> Bytes {
        Bytes::new(12.0)
    }
}
