//! Horovod: distributed data parallel with fusion buffers.

use super::{DataChoices, DataScheme, Divided, StepSizes, Volume, no_servers, nothing_divided};
use crate::units::Bytes;

/// An all-reduce for each fusion buffer: gradients are put into it while it has room, whatever the stack's buckets are.
///
/// V as without fusion. The time that a full buffer waits for Horovod's loop to wake, up to a cycle of 1 ms, is not in a plan's
/// program.
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

    /// Horovod's default since version 0.21; before, 64 MiB (release notes 0.21.0, change 2468).
    fn fusion(&self) -> Option<Bytes> {
        Some(Bytes::new(128.0 * 1024.0 * 1024.0))
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        nothing_divided(choices).and_then(|()| no_servers(choices))
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.all_reduced()
    }
}
