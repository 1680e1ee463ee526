//! Products with a weight. The bias of one that is cut by rows is added here, that of a sum over tensor ranks with the
//! residual.
//!
//! In plans in fp8 operands of the blocks' products are rounded to 8 bits, weights and activations to e4m3 and gradients to e5m2,
//! each tensor with the scale of its largest number (current scaling, Transformer Engine's format `HYBRID`). Those of
//! the router and of the logits are not.
//! Source: Micikevicius et al. 2022, arXiv 2209.05433, section 3; Transformer Engine's recipe Float8CurrentScaling.

use super::few_rows::{multiply_rows, sampled_rows};
use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use crate::device::{Matrix, Product};
use crate::train::parameters::{Layer, ParameterName};
use trainwright_kernels::Onto;
use trainwright_kernels::fp8::Fp8;
use trainwright_spec::program::Module;

pub(super) struct Linear;

impl Operator for Linear {
    /// Y = X Wᵀ + b.
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let (layer, name) = weight(step);
        if step.frame.generates() {
            let input = if step.place.1 == Module::Logits { sampled_rows(step, &input) } else { input };
            let bias = bias(step).and_then(|name| step.read(name));
            return multiply_rows(step, (layer, name), &input, bias);
        }
        let weights = step.state.layer(layer).read(name).expect("a product has a weight");
        let mut output = Tensor::any_on(step.device, input.rows(), weights.len() / input.width());
        let left = Matrix::rows(input.slice(), input.width());
        let right = Matrix::rows(weights, input.width()).transposed();
        let bias = bias(step).and_then(|name| step.read(name));
        let fp8 = fp8_formats(step, [Fp8::E4m3, Fp8::E4m3]);
        step.device.multiply(output.slice_mut(), Product { left, right, onto: Onto::Replace, bias, fp8 });
        output
    }

    /// ∂X = ∂Y W.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let (layer, name) = weight(step);
        let weights = step.state.layer(layer).read(name).expect("a product has a weight");
        let inputs = weights.len() / gradient.width();
        let mut to_input = Tensor::any_on(step.device, gradient.rows(), inputs);
        let left = Matrix::rows(gradient.slice(), gradient.width());
        let right = Matrix::rows(weights, inputs);
        let fp8 = fp8_formats(step, [Fp8::E5m2, Fp8::E4m3]);
        let product = Product { left, right, onto: Onto::Replace, bias: None, fp8 };
        step.device.multiply(to_input.slice_mut(), product);
        Some(to_input)
    }

    /// ∂W += ∂Yᵀ X.
    fn weight_gradient(&self, step: &mut Step) {
        let (layer, name) = weight(step);
        let gradient = step.frame.output_gradient(step.place);
        let input = match step.kept().gathered.take() {
            Some(gathered) => gathered,
            None => step.kept_input(),
        };
        let fp8 = fp8_formats(step, [Fp8::E5m2, Fp8::E4m3]);
        let layer = step.state.layer_mut(layer);
        let to_weight = layer.write(step.device, name).expect("a product has a weight");
        let left = Matrix::rows(gradient.slice(), gradient.width()).transposed();
        let right = Matrix::rows(input.slice(), input.width());
        step.device.multiply(to_weight, Product { left, right, onto: Onto::Add, bias: None, fp8 });
    }

    fn vector_gradient(&self, step: &mut Step) {
        let gradient = step.frame.output_gradient(step.place);
        let name = bias(step).expect("a product cut by rows has a bias");
        if let Some(bias) = step.state.layer_mut(step.place.0).write(step.device, name) {
            step.device.bias_gradient(gradient.slice(), bias);
        }
    }
}

/// The numbers that the operands of a product are rounded to, if they are.
fn fp8_formats(step: &Step, operands: [Fp8; 2]) -> Option<[Fp8; 2]> {
    let is_of_block = matches!(step.place.1, Module::Qkv | Module::Projection | Module::Fc1 | Module::Fc2);
    (step.sizes.fp8 && is_of_block).then_some(operands)
}

/// Where the matrix is.
pub(super) fn weight(step: &Step) -> (Layer, ParameterName) {
    let name = match step.place.1 {
        Module::Qkv => ParameterName::Qkv,
        Module::Projection => ParameterName::Projection,
        Module::Fc1 => ParameterName::Fc1,
        Module::Fc2 => ParameterName::Fc2,
        Module::Router => ParameterName::Router,
        Module::Logits => return step.state.output_embedding(),
        other => unreachable!("{other:?} is no product"),
    };
    (step.place.0, name)
}

/// The bias that is added at once.
pub(super) fn bias(step: &Step) -> Option<ParameterName> {
    match step.place.1 {
        Module::Qkv => Some(ParameterName::QkvBias),
        Module::Fc1 => Some(ParameterName::Fc1Bias),
        Module::Logits => Some(ParameterName::HeadBias),
        _ => None,
    }
}
