//! The end of a sublayer: the bias of its last product, and the addition of what went past it. Where a norm follows at once
//! it may do both on its way.

use super::{Operator, Step};
use crate::frame::Addition;
use crate::parameters::ParameterName;
use crate::tensor::Tensor;
use trainwright_spec::program::Module;

pub(super) struct Residual;

impl Operator for Residual {
    fn reads_input(&self) -> bool {
        false
    }

    fn forward(&self, step: &mut Step, mut input: Tensor) -> Tensor {
        let past = step.frame.past.take().expect("the norm of the sublayer leaves its input");
        if step.adds_in_norm && step.device.adds_in_norms() {
            step.frame.addition = Some(Addition { past, bias: (step.place.0, bias(step)) });
            return input;
        }
        step.device.add_residual(input.slice_mut(), past.slice(), step.read(bias(step)));
        input
    }

    /// The gradient goes both ways; the norm adds what comes through the sublayer to what goes past it.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        step.frame.past_gradient = Some(gradient.clone());
        Some(gradient)
    }

    fn vector_gradient(&self, step: &mut Step) {
        let gradient = step.frame.output_gradient(step.place);
        let name = bias(step);
        if let Some(bias) = step.state.layer_mut(step.place.0).write(step.device, name) {
            step.device.bias_gradient(gradient.slice(), bias);
        }
    }
}

/// That of the sublayer's last product: attention comes first.
fn bias(step: &Step) -> ParameterName {
    match step.place.1 {
        Module::Residual(0) => ParameterName::ProjectionBias,
        _ => ParameterName::Fc2Bias,
    }
}
