//! Cross entropy over this rank's part of the vocabulary.

use super::{Operator, Step};
use crate::device::LossTokens;
use crate::device::tensor::Tensor;
use trainwright_kernels::cross_entropy::Columns;

pub(super) struct Loss;

impl Operator for Loss {
    /// The logits flow on: nothing reads them.
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let three = step.device.loss(&columns(step), input.slice(), &step.frame.tokens().targets);
        step.kept().losses = three;
        input
    }

    /// The logits become their own gradient.
    fn backward(&self, step: &mut Step, _: Tensor) -> Option<Tensor> {
        let (columns, device, weight) = (columns(step), step.device, step.sizes.token_weight);
        let kept = step.kept();
        let mut logits = kept.input.take().expect("the loss keeps its logits");
        let three = std::mem::take(&mut kept.losses);
        let targets = &step.frame.tokens().targets;
        device.loss_gradient(
            &columns,
            logits.slice_mut(),
            LossTokens { targets, three: three.slice(), weight },
        );
        Some(logits)
    }
}

fn columns(step: &Step) -> Columns {
    let width = step.sizes.own_vocabulary;
    let first = step.sizes.column() * width;
    Columns { first, width, valid: step.sizes.vocabulary.saturating_sub(first).min(width) }
}
