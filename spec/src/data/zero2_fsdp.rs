//! FSDP that keeps weights from forward to backward.

use super::{DataChoices, DataScheme, Divided, Reshard, StepSizes, Volume, no_servers};

/// FSDP's SHARD_GRAD_OP, `reshard_after_forward=False`: one all-gather of the weights for each microbatch.
///
/// V = m (d − 1)/d (Ψ_w + Ψ_g). Between forward and backward a rank holds all its weights, as in ZeRO-2, and its part of
/// them beside.
#[derive(Debug, Clone, Copy)]
pub struct Zero2Fsdp;

impl DataScheme for Zero2Fsdp {
    fn name(&self) -> &'static str {
        "zero2-fsdp"
    }

    fn summary(&self) -> &'static str {
        "FSDP without resharding after forward (SHARD_GRAD_OP): weights are gathered once in each microbatch"
    }

    fn source(&self) -> &'static str {
        "PyTorch documentation, torch.distributed.fsdp.ShardingStrategy and fully_shard, reshard_after_forward"
    }

    fn divides(&self) -> Divided {
        Divided::Weights
    }

    fn reshard(&self) -> Reshard {
        Reshard::AfterBackward
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        if choices.options.reshard == Some(Reshard::AfterForward) {
            return Err(("data.reshard", "that is `fsdp`".into()));
        }
        no_servers(choices)
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.sharded(step.gathers())
    }
}
