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
        let positions = step.sizes.norm_positions();
        for (rows, position) in input.data_mut().chunks_exact_mut(batch * width).zip(positions) {
            elementwise::add_bias(rows, &table[position * width..(position + 1) * width]);
        }
        input
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let (batch, width) = (step.sizes.batch, gradient.width());
        let layer = step.state.layer_mut(step.place.0);
        let table =
            layer.gradients(ParameterName::PositionEmbedding).expect("learned positions have a table");
        let positions = step.sizes.norm_positions();
        for (rows, position) in gradient.data().chunks_exact(batch * width).zip(positions) {
            elementwise::bias_gradient(rows, &mut table[position * width..(position + 1) * width]);
        }
        Some(gradient)
    }
}
