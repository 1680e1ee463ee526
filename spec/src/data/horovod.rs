//! Horovod: distributed data parallel with fusion buffers.

use super::{DataChoices, DataScheme, Divided, StepSizes, Volume, no_servers, nothing_divided};
use crate::collective::fusion::Fusion;

/// An all-reduce for each fusion buffer: gradients are put into it while it has room, whatever the stack's buckets are.
///
/// V as without fusion. What a buffer waits for the loop to wake, up to a cycle each, is not in a plan's program:
/// `Fusion` says it for gradients whose times are known.
#[derive(Debug, Clone, Copy)]
pub struct Horovod;

impl DataScheme for Horovod {
    fn name(&self) -> &'static str {
        "horovod"
    }

    fn summary(&self) -> &'static str {
        "data parallel with Horovod's tensor fusion: gradients are all-reduced in buffers of at most 128 MiB"
    }

    fn source(&self) -> &'static str {
        "Sergeev & Del Balso 2018, Horovod, arXiv 1802.05799; HOROVOD_FUSION_THRESHOLD since 0.21.0"
    }

    fn divides(&self) -> Divided {
        Divided::Nothing
    }

    fn fusion(&self) -> Option<Fusion> {
        Some(Fusion::HOROVOD)
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        nothing_divided(choices).and_then(|()| no_servers(choices))
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.all_reduced()
    }
}
