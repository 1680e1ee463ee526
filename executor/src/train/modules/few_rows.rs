//! Products in passes that generate: each row for itself, with weights that may be packed in fewer bits.

use super::operator::Step;
use crate::device::Slice;
use crate::device::tensor::Tensor;
use crate::train::parameters::{Layer, ParameterName};
use trainwright_kernels::embedding::Rows;

/// Y = X Wᵀ + b.
pub(super) fn multiply_rows(
    step: &Step,
    (layer, name): (Layer, ParameterName),
    input: &Tensor,
    bias: Option<Slice>,
) -> Tensor {
    let weight = step.state.layer(layer).weight_rows(name).expect("a product has a weight");
    let width = input.width();
    let mut output = Tensor::any_on(step.device, input.rows(), weight.len() / width);
    step.device.multiply_rows(output.slice_mut(), input.slice(), width, weight, bias);
    output
}

/// The products of experts, each with the rows from one of `starts` to the next.
pub(super) fn multiply_experts(step: &Step, name: ParameterName, input: &Tensor, starts: &[usize]) -> Tensor {
    let weights = step.state.layer(step.place.0).weight_rows(name).expect("experts have weights");
    let (experts, inputs) = (starts.len() - 1, input.width());
    let outputs = weights.len() / experts / inputs;
    let mut output = Tensor::any_on(step.device, input.rows(), outputs);
    for (expert, rows) in starts.windows(2).map(|ends| ends[0]..ends[1]).enumerate() {
        if rows.is_empty() {
            continue;
        }
        let weight = weights.part(expert * outputs..(expert + 1) * outputs, inputs);
        let x = input.slice().part(rows.start * inputs..rows.end * inputs);
        let out = output.slice_mut().part(rows.start * outputs..rows.end * outputs);
        step.device.multiply_rows(out, x, inputs, weight, None);
    }
    output
}

/// The last row alone: only its logits choose a token.
pub(super) fn last_row(step: &Step, input: &Tensor) -> Tensor {
    let (rows, width) = (input.rows(), input.width());
    let mut last = Tensor::any_on(step.device, 1, width);
    step.device.copy(last.slice_mut(), input.slice().part((rows - 1) * width..rows * width));
    last
}

/// Looks tokens up in a packed table; entries of other ranks are zeros.
pub(super) fn look_up_packed(step: &Step, rows: Rows, output: &mut Tensor) {
    let table = step.state.layer(step.place.0).weight_rows(ParameterName::TokenEmbedding);
    let table = table.expect("an embedding has a table");
    let entries = rows.first..rows.first + table.len() / rows.width;
    let tokens = step.frame.tokens().inputs.host();
    for (token, out) in tokens.iter().zip(output.data_mut().chunks_exact_mut(rows.width)) {
        match *token as usize {
            entry if entries.contains(&entry) => table.read(entry - rows.first, out),
            _ => out.fill(0.0),
        }
    }
}
