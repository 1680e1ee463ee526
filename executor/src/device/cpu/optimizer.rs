//! Updates of weights where they lie.

use super::super::{OptimizerOps, Rule, Updated};
use super::Cpu;
use trainwright_kernels::elementwise;
use trainwright_kernels::optimizer::{Squares, StepSize, descend};

impl OptimizerOps for Cpu {
    /// LAMB's updates take the place of the gradients.
    fn prepare(&self, rule: &Rule, tensor: Updated, size: StepSize) -> Squares {
        let (weights, gradients) = (&*tensor.weights.host(), tensor.gradients.host());
        match (rule, tensor.moments) {
            (Rule::Lamb(lamb), [first, second]) => {
                lamb.prepare(weights, gradients, [first.host_mut(), second.host_mut()], size)
            }
            (Rule::Lars(lars), _) => lars.prepare(weights, gradients, size),
            (other, _) => unreachable!("a step of {other:?} has no halves"),
        }
    }

    fn optimize(&self, rule: &Rule, tensor: Updated, size: StepSize, whole: Squares) {
        let Updated { weights, gradients, moments, rounded } = tensor;
        let (weights, gradients) = (weights.host(), gradients.host());
        match (rule, moments) {
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
            (Rule::Lamb(lamb), _) => lamb.apply(weights, gradients, size, whole),
            (Rule::Lars(lars), [velocity]) => {
                lars.apply(weights, gradients, velocity.host_mut(), size, whole)
            }
            (Rule::Momentum(momentum), [velocity]) => {
                momentum.update(weights, gradients, velocity.host_mut(), size);
            }
            (Rule::Sgd, _) => descend(weights, gradients, size),
            (other, moments) => unreachable!("{other:?} has not {} moments", moments.len()),
        }
        if let Some(rounded) = rounded {
            let rounded = rounded.host();
            rounded.copy_from_slice(weights);
            elementwise::round_to_bf16(rounded);
        }
    }
}
