//! The nonlinearity of a feed-forward layer.

use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use trainwright_kernels::activation::{self, FeedForward};
use trainwright_spec::model::{self, Mlp};

pub(super) struct Activation;

impl Operator for Activation {
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let kernel = kernel(step);
        let mut output = Tensor::any_on(step.device, input.rows(), kernel.width);
        step.device.activate(&kernel, input.slice(), output.slice_mut());
        output
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let kernel = kernel(step);
        let input = step.kept_input();
        let mut to_input = Tensor::any_on(step.device, input.rows(), input.width());
        step.device.activation_gradient(&kernel, input.slice(), gradient.slice(), to_input.slice_mut());
        Some(to_input)
    }
}

fn kernel(step: &Step) -> FeedForward {
    let (mlp, ranks) = match &step.block().mlp {
        Mlp::Dense(mlp) => (mlp, step.sizes.parts),
        Mlp::Experts(experts) => (&experts.expert, step.sizes.experts.tensor),
    };
    let activation = match mlp.activation {
        model::Activation::Gelu => activation::Activation::Gelu,
        model::Activation::Silu => activation::Activation::Silu,
        model::Activation::Relu => activation::Activation::Relu,
        model::Activation::SquaredRelu => activation::Activation::SquaredRelu,
    };
    FeedForward { activation, gated: mlp.gated, width: mlp.width / ranks }
}
