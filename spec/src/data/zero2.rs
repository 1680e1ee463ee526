//! ZeRO-2: the optimizer's state and the gradients are divided.

use super::{
    DataChoices, DataScheme, Divided, Reduction, StepSizes, Volume, no_servers, require_full_weights,
};

/// A reduce-scatter of each bucket of gradients in every backward pass, after which the bucket is given up; an all-gather
/// of the weights a step.
///
/// V = (d − 1)/d (m Ψ_g + Ψ_w): with one microbatch that of ZeRO-1. 2 + 14/d bytes of state for each parameter, and
/// at most two buckets of undivided gradients.
#[derive(Debug, Clone, Copy)]
pub struct Zero2;

impl DataScheme for Zero2 {
    fn name(&self) -> &'static str {
        "zero2"
    }

    fn summary(&self) -> &'static str {
        "ZeRO-2: the optimizer's state and the gradients are divided, gradients reduced in every microbatch"
    }

    fn source(&self) -> &'static str {
        "Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, sections 5.2 and 7; DeepSpeed, zero_optimization stage 2"
    }

    fn divides(&self) -> Divided {
        Divided::Gradients
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        require_full_weights(choices)?;
        partitions_gradients(choices)?;
        no_servers(choices)
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.sharded(1.0)
    }
}

/// For DeepSpeed's ZeRO-2 and ZeRO-3, which refuse `no_sync`: gradients that are not reduced cannot be divided.
pub(super) fn partitions_gradients(choices: &DataChoices) -> Result<(), (&'static str, String)> {
    match choices.options.reduce {
        Some(Reduction::LastMicrobatch) => Err((
            "data.reduce",
            "divided gradients are reduced in `every-microbatch`: take `zero1`, or `fsdp`, which then keeps them whole"
                .into(),
        )),
        _ => Ok(()),
    }
}
