//! Distributed data parallel: every rank holds everything.

use super::{DataChoices, DataScheme, Divided, StepSizes, Volume, no_servers, nothing_divided};

/// An all-reduce of the gradients, bucket by bucket as they are complete.
///
/// V = 2 (d − 1)/d Ψ_g a step, or for each microbatch where there is no `no_sync`. 16 bytes of state for each parameter
/// with 16-bit gradients and Adam.
#[derive(Debug, Clone, Copy)]
pub struct Ddp;

impl DataScheme for Ddp {
    fn name(&self) -> &'static str {
        "none"
    }

    fn summary(&self) -> &'static str {
        "distributed data parallel (DDP): every rank holds everything, gradients are all-reduced in buckets"
    }

    fn source(&self) -> &'static str {
        "Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training, arXiv 2006.15704"
    }

    fn divides(&self) -> Divided {
        Divided::Nothing
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        nothing_divided(choices).and_then(|()| no_servers(choices))
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        step.all_reduced()
    }
}
