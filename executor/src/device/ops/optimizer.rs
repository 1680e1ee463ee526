//! What an update needs of a device.

use super::super::{Numbers, SliceMut};
use trainwright_kernels::optimizer::{AdamW, Lamb, Lars, Momentum, Squares, StepSize};

/// An optimizer with its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rule {
    AdamW(AdamW),
    /// Adam whose weight decay is part of the gradient.
    Adam(AdamW),
    Lamb(Lamb),
    Lars(Lars),
    Momentum(Momentum),
    Sgd,
}

/// A tensor, or the piece of one that a rank owns, at its update.
pub(crate) struct Updated<'a> {
    pub weights: SliceMut<'a>,
    /// They are used up.
    pub gradients: SliceMut<'a>,
    pub moments: &'a mut [Numbers],
    /// The weights as forward and backward use them, where those are rounded.
    pub rounded: Option<SliceMut<'a>>,
}

/// A device that updates weights.
pub(crate) trait OptimizerOps {
    /// The first half of a step of LAMB or LARS: what this part adds to the squares of its tensor and of the tensor's update.
    fn prepare(&self, rule: &Rule, tensor: Updated, size: StepSize) -> Squares;

    /// A step; LAMB's and LARS' second half, by the squares of the whole tensor.
    fn optimize(&self, rule: &Rule, tensor: Updated, size: StepSize, whole: Squares);
}
