//! The addition of a learned vector for each position.

use super::{Operator, Step};
use crate::parameters::ParameterName;
use crate::tensor::Tensor;
use trainwright_kernels::elementwise;

pub(super) struct Positions;

impl Operator for Positions {
    fn reads_input(&self) -> bool {
        false
    }

    fn forward(&self, step: &mut Step, mut input: Tensor) -> Tensor {
        let table = step.weights(ParameterName::PositionEmbedding).expect("learned positions have a table");
        let (batch, width) = (step.sizes.batch, input.width());
        let own = table.chunks_exact(width).skip(step.sizes.first_position());
        for (rows, vector) in input.data_mut().chunks_exact_mut(batch * width).zip(own) {
            elementwise::add_bias(rows, vector);
        }
        input
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let (batch, width, first) = (step.sizes.batch, gradient.width(), step.sizes.first_position());
        let layer = step.state.layer_mut(step.place.0);
        let table =
            layer.gradients(ParameterName::PositionEmbedding).expect("learned positions have a table");
        let own = table.chunks_exact_mut(width).skip(first);
        for (rows, vector) in gradient.data().chunks_exact(batch * width).zip(own) {
            elementwise::bias_gradient(rows, vector);
        }
        Some(gradient)
    }
}
