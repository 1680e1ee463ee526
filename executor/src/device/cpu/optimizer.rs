//! Updates of weights where they lie, tensor by tensor.

use super::super::{OptimizerOps, OptimizerStep, Rule, Updated};
use super::Cpu;
use trainwright_kernels::elementwise;
use trainwright_kernels::optimizer::{Squares, StepSize, descend};

impl OptimizerOps for Cpu {
    fn prepare(&self, step: &OptimizerStep, tensors: &mut [Updated]) -> Vec<Squares> {
        tensors.iter_mut().map(|tensor| self.prepare_one(step, tensor)).collect()
    }

    fn optimize(&self, step: &OptimizerStep, tensors: &mut [Updated], squares: Option<&[Squares]>) {
        for (index, tensor) in tensors.iter_mut().enumerate() {
            self.optimize_one(step, tensor, squares.map(|squares| squares[index]));
        }
    }
}

impl Cpu {
    /// The first half of a step of one tensor. LAMB's updates take the place of the gradients.
    pub fn prepare_one(&self, step: &OptimizerStep, tensor: &mut Updated) -> Squares {
        let size = step.of(tensor);
        let (weights, gradients) = (&*tensor.weights.again().host(), tensor.gradients.again().host());
        match (step.rule, &mut *tensor.moments) {
            (Rule::Lamb(lamb), [first, second]) => {
                lamb.prepare(weights, gradients, [first.host_mut(), second.host_mut()], size)
            }
            (Rule::Lars(lars), _) => lars.prepare(weights, gradients, size),
            (other, _) => unreachable!("a step of {other:?} has no halves"),
        }
    }

    /// A step of one tensor, or the second half of it.
    pub fn optimize_one(&self, step: &OptimizerStep, tensor: &mut Updated, squares: Option<Squares>) {
        let squares = match squares {
            Some(squares) => squares,
            None if step.rule.is_layer_wise() => self.prepare_one(step, tensor),
            None => Squares::default(),
        };
        let squares = if tensor.is_scaled { squares } else { Squares::default() };
        self.apply(step, tensor, squares);
    }

    fn apply(&self, step: &OptimizerStep, tensor: &mut Updated, squares: Squares) {
        let size = step.of(tensor);
        let Updated { weights, gradients, moments, rounded, .. } = tensor;
        let (weights, gradients) = (weights.again().host(), gradients.again().host());
        match (step.rule, &mut **moments) {
            (Rule::AdamW(adam), [first, second]) => {
                adam.update(weights, gradients, [first.host_mut(), second.host_mut()], size, self.threads);
            }
            (Rule::Adam(adam), [first, second]) => {
                for (gradient, weight) in gradients.iter_mut().zip(&*weights) {
                    *gradient = *gradient * size.gradient_scale + size.decay * weight;
                }
                let size = StepSize { decay: 0.0, gradient_scale: 1.0, ..size };
                adam.update(weights, gradients, [first.host_mut(), second.host_mut()], size, self.threads);
            }
            (Rule::Lamb(lamb), _) => lamb.apply(weights, gradients, size, squares),
            (Rule::Lars(lars), [velocity]) => {
                lars.apply(weights, gradients, velocity.host_mut(), size, squares)
            }
            (Rule::Momentum(momentum), [velocity]) => {
                momentum.update(weights, gradients, velocity.host_mut(), size);
            }
            (Rule::Sgd, _) => descend(weights, gradients, size),
            (other, moments) => unreachable!("{other:?} has not {} moments", moments.len()),
        }
        if let Some(rounded) = rounded {
            let rounded = rounded.again().host();
            rounded.copy_from_slice(weights);
            elementwise::round_to_bf16(rounded);
        }
    }
}
