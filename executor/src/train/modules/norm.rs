//! LayerNorm and RMSNorm before a sublayer and after the last block.

use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use crate::device::{NormGradient, Numbers, Sum};
use crate::train::frame::Addition;
use crate::train::parameters::ParameterName;
use trainwright_kernels::norm;
use trainwright_spec::model;
use trainwright_spec::program::Module;

/// What a norm keeps for backward.
#[derive(Debug, Default)]
struct NormKept {
    /// Means and deviations of the rows, as its kernel leaves them.
    left: Numbers,
    /// The gradient of its input, if it was made together with those of its vectors.
    input_gradient: Option<Tensor>,
}

pub(super) struct Norm;

impl Operator for Norm {
    fn forward(&self, step: &mut Step, mut input: Tensor) -> Tensor {
        let norm = kernel(step);
        let addition = step.frame.addition.take();
        // The sum takes the place of what it is added to, and is what is kept.
        let is_kept = addition.is_some() && step.kept().input.take().is_some();
        let vectors = names(step).map(|name| step.read(name));
        let mut output = Tensor::any_on(step.device, input.rows(), input.width());
        let left = match &addition {
            None => step.device.norm(&norm, input.slice(), vectors, output.slice_mut()),
            Some(Addition { past, bias: (layer, name) }) => {
                let bias = step.state.layer(*layer).read(*name);
                let sum = Sum { x: input.slice_mut(), past: past.slice(), bias };
                step.device.norm_of_sum(&norm, sum, vectors, output.slice_mut())
            }
        };
        if is_kept {
            step.kept().input = Some(input.clone());
        }
        if step.keeps {
            step.kept().module_state::<NormKept>().left = left;
        }
        if step.place.1 != Module::FinalNorm {
            step.frame.past = Some(input);
        }
        output
    }

    /// What comes through the norm is added to what went past the sublayer.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        if let Some(made) = step.kept().module_state::<NormKept>().input_gradient.take() {
            return Some(made);
        }
        let norm = kernel(step);
        let input = step.kept_input();
        let left = std::mem::take(&mut step.kept().module_state::<NormKept>().left);
        let mut sum = past_gradient(step, &input);
        let [gain, _] = names(step).map(|name| step.read(name));
        let read = NormGradient { x: input.slice(), gain, left: left.slice(), gradient: gradient.slice() };
        step.device.norm_gradient(&norm, read, sum.slice_mut());
        step.kept().module_state::<NormKept>().left = left;
        Some(sum)
    }

    /// With that of the input where a device makes all of them from one reading.
    fn vector_gradient(&self, step: &mut Step) {
        let (norm, device, names) = (kernel(step), step.device, names(step));
        let input = step.kept_input();
        let gradient = step.frame.output_gradient(step.place);
        // Where the input's gradient is there already it was made alone.
        let at_once = device.makes_norm_gradients_at_once(&norm) && step.kept().output_gradient.is_none();
        let mut sum = at_once.then(|| past_gradient(step, &input));
        let left = step.frame.kept(step.place).module_state::<NormKept>().left.slice();
        let layer = step.state.layer_mut(step.place.0);
        let (gain, vectors) = layer.read_and_write_both(device, names);
        let read = NormGradient { x: input.slice(), gain, left, gradient: gradient.slice() };
        match &mut sum {
            Some(sum) => device.norm_gradients(&norm, read, vectors, sum.slice_mut()),
            None => device.norm_vectors(&norm, read, vectors),
        }
        step.kept().module_state::<NormKept>().input_gradient = sum;
    }
}

/// What went past the sublayer backward, to which the input's gradient is added.
fn past_gradient(step: &mut Step, input: &Tensor) -> Tensor {
    let past = step.frame.past_gradient.take();
    past.unwrap_or_else(|| Tensor::zeros_on(step.device, input.rows(), input.width()))
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
