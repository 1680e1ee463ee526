//! The end of a sublayer: the bias of its last product, and the addition of what went past it. Where a norm follows at once
//! it may do both on its way.

use super::dropout::drop_out;
use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use crate::train::frame::Addition;
use crate::train::masks::Dropped;
use crate::train::parameters::ParameterName;
use trainwright_spec::program::Module;

pub(super) struct Residual;

impl Operator for Residual {
    fn reads_input(&self) -> bool {
        false
    }

    fn forward(&self, step: &mut Step, mut input: Tensor) -> Tensor {
        let past = step.frame.past.take().expect("the norm of the sublayer leaves its input");
        let drops = step.model.drops_out().residual > 0.0;
        if step.adds_in_norm && step.device.adds_in_norms() && !drops {
            step.frame.addition = Some(Addition { past, bias: (step.place.0, bias(step)) });
            return input;
        }
        let bias = step.read(bias(step));
        if !drops {
            step.device.add_residual(input.slice_mut(), past.slice(), bias);
            return input;
        }
        if let Some(bias) = bias {
            step.device.add_bias(input.slice_mut(), bias);
        }
        drop_out(step, &mut input, Dropped::Sublayer(sublayer(step)));
        step.device.add(input.slice_mut(), past.slice());
        input
    }

    /// The gradient goes both ways; the norm adds what comes through the sublayer to what goes past it.
    fn backward(&self, step: &mut Step, mut gradient: Tensor) -> Option<Tensor> {
        step.frame.past_gradient = Some(gradient.clone());
        drop_out(step, &mut gradient, Dropped::Sublayer(sublayer(step)));
        Some(gradient)
    }

    fn vector_gradient(&self, step: &mut Step) {
        let name = bias(step);
        let mut gradient = step.frame.output_gradient(step.place);
        drop_out(step, &mut gradient, Dropped::Sublayer(sublayer(step)));
        if let Some(bias) = step.state.layer_mut(step.place.0).write(step.device, name) {
            step.device.bias_gradient(gradient.slice(), bias);
        }
    }
}

/// Which of the block's sublayers it ends: attention comes first.
fn sublayer(step: &Step) -> usize {
    match step.place.1 {
        Module::Residual(index) => index,
        other => unreachable!("{other:?} ends no sublayer"),
    }
}

/// That of the sublayer's last product.
fn bias(step: &Step) -> ParameterName {
    match sublayer(step) {
        0 => ParameterName::ProjectionBias,
        _ => ParameterName::Fc2Bias,
    }
}
