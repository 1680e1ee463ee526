//! Hybrid sharding: FSDP in groups, data parallel between them.

use super::{DataChoices, DataScheme, Divided, StepSizes, Volume, no_servers};

/// FSDP among the s = `mesh.shard` ranks of a group, after which each rank all-reduces its part of the gradients with
/// its like in the r other groups.
///
/// V = A (s − 1)/s Ψ_w + R [(s − 1)/s Ψ_g + 2 (r − 1)/r Ψ_g / s], A and R as in FSDP. 16/s bytes of state.
#[derive(Debug, Clone, Copy)]
pub struct Hsdp;

impl DataScheme for Hsdp {
    fn name(&self) -> &'static str {
        "hsdp"
    }

    fn summary(&self) -> &'static str {
        "hybrid sharding (HSDP): FSDP among mesh.shard neighbouring ranks, all-reduce between such groups"
    }

    fn source(&self) -> &'static str {
        "Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277, section 3.2.2; fully_shard on a 2-D device mesh"
    }

    fn divides(&self) -> Divided {
        Divided::Weights
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        if choices.shard.is_none() {
            return Err((
                "mesh.shard",
                "`hsdp` needs the size of a group; `fsdp` is that of all ranks".into(),
            ));
        }
        no_servers(choices)
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.sharded(step.gathers())
    }
}
