//! Cross entropy over this rank's part of the vocabulary.

use super::{Operator, Step};
use crate::tensor::Tensor;
use trainwright_kernels::cross_entropy::Columns;

pub(super) struct Loss;

impl Operator for Loss {
    /// The logits flow on: nothing reads them.
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let statistics = columns(step).statistics(input.data(), &step.frame.tokens().targets, step.threads);
        step.kept().statistics = statistics;
        input
    }

    /// The logits become their own gradient.
    fn backward(&self, step: &mut Step, _: Tensor) -> Option<Tensor> {
        let (columns, weight, threads) = (columns(step), step.sizes.token_weight, step.threads);
        let kept = step.kept();
        let mut logits = kept.input.take().expect("the loss keeps its logits");
        let statistics = std::mem::take(&mut kept.statistics);
        columns.gradient(logits.data_mut(), &step.frame.tokens().targets, &statistics, weight, threads);
        Some(logits)
    }
}

fn columns(step: &Step) -> Columns {
    let width = step.sizes.own_vocabulary;
    let first = step.sizes.column() * width;
    Columns { first, width, valid: step.sizes.vocabulary.saturating_sub(first).min(width) }
}
