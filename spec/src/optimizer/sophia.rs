//! Sophia: steps clipped by an estimate of the diagonal of the Hessian.

use super::Optimizer;
use crate::units::Bytes;

/// A moment and the diagonal, both fp32.
pub struct Sophia;

/// Steps from one estimate of the diagonal to the next.
const EVERY: f64 = 10.0;

/// The part of the batch that an estimate passes over: 240 of 480 sequences.
const ESTIMATED_ON: f64 = 0.5;

impl Optimizer for Sophia {
    fn name(&self) -> &'static str {
        "sophia"
    }

    fn summary(&self) -> &'static str {
        "momentum over the Hessian's diagonal, which every 10th step estimates on half of the batch"
    }

    fn source(&self) -> &'static str {
        "Liu et al. 2023, arXiv 2305.14342"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::new(8.0)
    }

    fn extra_passes(&self) -> f64 {
        ESTIMATED_ON / EVERY
    }
}
