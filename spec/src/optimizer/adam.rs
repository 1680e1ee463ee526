//! Adam and AdamW: the same costs.

use super::Optimizer;
use crate::units::Bytes;

/// Two fp32 moments.
pub struct Adam;

/// Adam with decoupled weight decay.
pub struct AdamW;

impl Optimizer for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn summary(&self) -> &'static str {
        "Adam, two fp32 moments"
    }

    fn source(&self) -> &'static str {
        "Kingma and Ba 2014, arXiv 1412.6980"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::new(8.0)
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn summary(&self) -> &'static str {
        "Adam with decoupled weight decay, two fp32 moments"
    }

    fn source(&self) -> &'static str {
        "Loshchilov and Hutter 2017, arXiv 1711.05101"
    }

    fn moment_bytes(&self) -> Bytes {
        Adam.moment_bytes()
    }
}
