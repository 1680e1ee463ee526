//! ZeRO-3: everything is divided.

use super::zero2::partitions_gradients;
use super::{DataChoices, DataScheme, Divided, StepSizes, Volume, no_servers};

/// An all-gather of each block's weights before its forward and again before its backward, a reduce-scatter of its
/// gradients after it, for every microbatch.
///
/// V = m (d − 1)/d (2 Ψ_w + Ψ_g): 3 Ψ for each microbatch where both have elements of one size. 16/d bytes of state for
/// each parameter, the weights of the blocks gathered ahead and two blocks of gradients.
#[derive(Debug, Clone, Copy)]
pub struct Zero3;

impl DataScheme for Zero3 {
    fn name(&self) -> &'static str {
        "zero3"
    }

    fn summary(&self) -> &'static str {
        "ZeRO-3: optimizer, gradients and weights are divided, weights gathered block by block in each pass"
    }

    fn source(&self) -> &'static str {
        "Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, sections 5.3 and 7; DeepSpeed, zero_optimization stage 3"
    }

    fn divides(&self) -> Divided {
        Divided::Weights
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        partitions_gradients(choices)?;
        no_servers(choices)
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.sharded(step.gathers())
    }
}
