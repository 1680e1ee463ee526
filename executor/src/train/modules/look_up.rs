//! The look-up of tokens in this rank's part of their embedding.

use super::few_rows::look_up_packed;
use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use crate::train::parameters::ParameterName;
use trainwright_kernels::embedding::Rows;

pub(super) struct LookUp;

impl Operator for LookUp {
    fn reads_input(&self) -> bool {
        false
    }

    /// The input is not a tensor but the frame's tokens.
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let mut output = input;
        if step.frame.generates() {
            look_up_packed(step, rows(step), &mut output);
            return output;
        }
        let table = step.read(ParameterName::TokenEmbedding).expect("an embedding has a table");
        step.device.look_up(rows(step), table, &step.frame.tokens().inputs, output.slice_mut());
        output
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let rows = rows(step);
        let layer = step.state.layer_mut(step.place.0);
        let table = layer.write(step.device, ParameterName::TokenEmbedding);
        let table = table.expect("an embedding has a table");
        step.device.look_up_gradient(rows, table, &step.frame.tokens().inputs, gradient.slice());
        None
    }
}

fn rows(step: &Step) -> Rows {
    Rows { first: step.sizes.local_entries().start, width: step.sizes.hidden }
}
