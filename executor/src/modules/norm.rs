//! LayerNorm and RMSNorm before a sublayer and after the last block.

use super::{Operator, Step};
use crate::parameters::ParameterName;
use crate::tensor::Tensor;
use trainwright_kernels::norm;
use trainwright_spec::model;
use trainwright_spec::program::Module;

pub(super) struct Norm;

impl Operator for Norm {
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let norm = kernel(step);
        let [gain, bias] = names(step).map(|name| step.weights(name));
        let mut output = Tensor::any(input.rows(), input.width());
        norm.forward(input.data(), gain, bias, output.data_mut(), step.threads);
        if step.place.1 != Module::FinalNorm {
            step.frame.past = Some(input);
        }
        output
    }

    /// What comes through the norm is added to what went past the sublayer.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let norm = kernel(step);
        let input = step.kept_input();
        let past = step.frame.past_gradient.take();
        let mut sum = past.unwrap_or_else(|| Tensor::zeros(input.rows(), input.width()));
        let [gain, _] = names(step).map(|name| step.weights(name));
        norm.backward(input.data(), gain, gradient.data(), sum.data_mut(), step.threads);
        Some(sum)
    }

    fn vector_gradient(&self, step: &mut Step) {
        let norm = kernel(step);
        let names = names(step);
        let input = step.kept_input();
        let gradient = step.frame.output_gradient(step.place);
        let layer = step.state.layer_mut(step.place.0);
        if let Some(gain) = layer.gradients(names[0]) {
            norm.vector_gradients(input.data(), gradient.data(), Some(gain), None);
        }
        if let Some(bias) = layer.gradients(names[1]) {
            norm.vector_gradients(input.data(), gradient.data(), None, Some(bias));
        }
    }
}

pub(super) fn names(step: &Step) -> [ParameterName; 2] {
    match step.place.1 {
        Module::Norm(index) => [ParameterName::NormGain(index), ParameterName::NormBias(index)],
        _ => [ParameterName::FinalNormGain, ParameterName::FinalNormBias],
    }
}

/// Where the model says nothing ε is what PyTorch's norms have, and Hugging Face's GPT-2 and LLaMA 2.
pub(super) fn kernel(step: &Step) -> norm::Norm {
    let kind = match step.place.1 {
        Module::Norm(_) => step.block().norm,
        _ => step.model.final_norm.expect("a final norm runs where there is one"),
    };
    norm::Norm {
        centred: kind != model::Norm::RmsNorm,
        width: step.sizes.hidden,
        epsilon: step.model.norm_epsilon.unwrap_or(1e-5),
    }
}
