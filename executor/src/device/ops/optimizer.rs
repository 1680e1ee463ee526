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

impl Rule {
    /// Whether each tensor's step is scaled by its norm.
    pub fn is_layer_wise(&self) -> bool {
        matches!(self, Rule::Lamb(_) | Rule::Lars(_))
    }
}

/// A step of all tensors of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OptimizerStep {
    pub rule: Rule,
    /// Learning rate.
    pub rate: f32,
    /// What gradients are multiplied by.
    pub gradient_scale: f32,
    /// From 1.
    pub number: u32,
}

impl OptimizerStep {
    /// That of a tensor.
    pub fn of(&self, tensor: &Updated) -> StepSize {
        let Self { rate, gradient_scale, number, .. } = *self;
        StepSize { rate, decay: tensor.decay, gradient_scale, step: number }
    }
}

/// A tensor, or the piece of one that a rank owns, at its update.
pub(crate) struct Updated<'a> {
    pub weights: SliceMut<'a>,
    /// They are used up.
    pub gradients: SliceMut<'a>,
    pub moments: &'a mut [Numbers],
    /// The weights as forward and backward use them, where those are rounded.
    pub rounded: Option<SliceMut<'a>>,
    /// λ.
    pub decay: f32,
    /// Whether LAMB and LARS scale its step. Vectors step as they are.
    pub is_scaled: bool,
}

/// A device that updates weights.
pub(crate) trait OptimizerOps {
    /// The first half of a step of LAMB or LARS: what each part adds to the squares of its tensor and of the tensor's update.
    fn prepare(&self, step: &OptimizerStep, tensors: &mut [Updated]) -> Vec<Squares>;

    /// A step. Of LAMB's and LARS' it is the second half where the squares of the complete tensors are given as `squares`, and both where
    /// the tensors are complete on this rank.
    fn optimize(&self, step: &OptimizerStep, tensors: &mut [Updated], squares: Option<&[Squares]>);
}
