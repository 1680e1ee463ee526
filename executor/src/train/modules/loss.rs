//! Cross entropy over this rank's part of the vocabulary.

use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use crate::device::{LossTokens, Numbers};
use trainwright_kernels::cross_entropy::Columns;

/// What the loss keeps for backward, and what ranks with other columns of the logits put together.
#[derive(Debug, Default)]
pub(crate) struct LossSums {
    /// Three numbers of each token: the largest logit, with it the sum, then the logit by the target's distribution.
    pub three: Numbers,
    /// How many of those have been put together over the tensor axis.
    pub exchanged: usize,
}

pub(super) struct Loss;

impl Operator for Loss {
    /// The logits flow on: nothing reads them.
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let three = {
            let (columns, frame) = (columns(step), &step.frame);
            step.device.loss(&columns, input.slice(), &frame.tokens().targets, &frame.loss_terms)
        };
        step.kept().module_state::<LossSums>().three = three;
        input
    }

    /// Their gradient replaces the logits, in the same buffer.
    fn backward(&self, step: &mut Step, _: Tensor) -> Option<Tensor> {
        let (columns, device) = (columns(step), step.device);
        let (weight, terms) = (step.frame.token_weight, step.frame.loss_terms);
        let kept = step.kept();
        let mut logits = kept.input.take().expect("the loss keeps its logits");
        let three = std::mem::take(&mut kept.module_state::<LossSums>().three);
        let targets = &step.frame.tokens().targets;
        device.loss_gradient(
            &columns,
            logits.slice_mut(),
            LossTokens { targets, three: three.slice(), weight, terms },
        );
        Some(logits)
    }
}

fn columns(step: &Step) -> Columns {
    let width = step.sizes.local_vocabulary;
    let first = step.sizes.column() * width;
    Columns { first, width, valid: step.sizes.vocabulary.saturating_sub(first).min(width) }
}
