//! ZeRO-1: the optimizer's state is divided.

use super::{DataChoices, DataScheme, Divided, StepSizes, Volume, no_servers, require_full_weights};

/// A reduce-scatter of the gradients; each rank updates its part of the weights; an all-gather of the weights.
///
/// V = (d − 1)/d (Ψ_g + Ψ_w) a step: what an all-reduce sends where both have elements of one size. 4 + 12/d bytes
/// of state for each parameter, 6 + 12/d with fp32 gradients.
///
/// With `mesh.shard` = G the state is divided within groups of G ranks, and each rank all-reduces its part of the
/// gradients with its like in the other groups.
#[derive(Debug, Clone, Copy)]
pub struct Zero1;

impl DataScheme for Zero1 {
    fn name(&self) -> &'static str {
        "zero1"
    }

    fn summary(&self) -> &'static str {
        "ZeRO-1, Megatron's distributed optimizer: the optimizer's state is divided"
    }

    fn source(&self) -> &'static str {
        "Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, sections 5.1 and 7"
    }

    fn divides(&self) -> Divided {
        Divided::Optimizer
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        require_full_weights(choices).and_then(|()| no_servers(choices))
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.sharded(1.0)
    }
}
