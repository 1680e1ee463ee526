//! Fully sharded data parallel: ZeRO-3 as PyTorch does it.

use super::{DataChoices, DataScheme, Divided, StepSizes, Volume, no_servers};

/// As ZeRO-3 (FULL_SHARD); gradients may wait for the last microbatch (`no_sync`), and are then kept undivided until it.
///
/// V = (d − 1)/d (A Ψ_w + R Ψ_g): A = 2 m gathers a step, m without resharding after forward, 1 if weights stay gathered
/// until the step's end; R = m reductions, 1 with `no_sync`.
#[derive(Debug, Clone, Copy)]
pub struct Fsdp;

impl DataScheme for Fsdp {
    fn name(&self) -> &'static str {
        "fsdp"
    }

    fn summary(&self) -> &'static str {
        "PyTorch's fully sharded data parallel (FSDP): as ZeRO-3, each block a unit"
    }

    fn source(&self) -> &'static str {
        "Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277; torch.distributed.fsdp.fully_shard"
    }

    fn divides(&self) -> Divided {
        Divided::Weights
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        if choices.shard.is_some() {
            return Err(("mesh.shard", "`fsdp` divides over all: take `hsdp`".into()));
        }
        no_servers(choices)
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.sharded(step.gathers())
    }
}
