//! Products with a weight. The bias of one that is cut by rows is added here, that of a sum over tensor ranks with the
//! residual.

use super::{Operator, Step};
use crate::parameters::{Layer, ParameterName};
use crate::tensor::Tensor;
use trainwright_kernels::{Matrix, Onto, elementwise, multiply};
use trainwright_spec::program::Module;

pub(super) struct Linear;

impl Operator for Linear {
    /// Y = X Wᵀ + b.
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let (layer, name) = weight(step);
        let weights = step.state.layer(layer).weights(name).expect("a product has a weight");
        let outputs = weights.len() / input.width();
        let mut output = Tensor::any(input.rows(), outputs);
        let by_row = Matrix::rows(weights, input.width()).transposed();
        let rows = Matrix::rows(input.data(), input.width());
        multiply(output.data_mut(), Onto::Replace, rows, by_row, step.threads);
        if let Some(bias) = bias(step).and_then(|name| step.weights(name)) {
            elementwise::add_bias(output.data_mut(), bias);
        }
        output
    }

    /// ∂X = ∂Y W.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let (layer, name) = weight(step);
        let weights = step.state.layer(layer).weights(name).expect("a product has a weight");
        let inputs = weights.len() / gradient.width();
        let mut to_input = Tensor::any(gradient.rows(), inputs);
        let rows = Matrix::rows(gradient.data(), gradient.width());
        multiply(to_input.data_mut(), Onto::Replace, rows, Matrix::rows(weights, inputs), step.threads);
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
        let to_weight = step.state.layer_mut(layer).gradients(name).expect("a product has a weight");
        let columns = Matrix::rows(gradient.data(), gradient.width()).transposed();
        multiply(to_weight, Onto::Add, columns, Matrix::rows(input.data(), input.width()), step.threads);
    }

    fn vector_gradient(&self, step: &mut Step) {
        let gradient = step.frame.output_gradient(step.place);
        let name = bias(step).expect("a product cut by rows has its own bias");
        if let Some(bias) = step.state.layer_mut(step.place.0).gradients(name) {
            elementwise::bias_gradient(gradient.data(), bias);
        }
    }
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
