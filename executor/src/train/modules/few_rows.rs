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
    if input.rows() > 0 {
        step.device.multiply_rows(output.slice_mut(), input.slice(), width, weight, bias);
    }
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

/// The last row of each sequence that a token is chosen for: only its logits are read.
pub(super) fn sampled_rows(step: &Step, input: &Tensor) -> Tensor {
    let sequences = step.frame.sequences.as_ref().expect("a pass that generates has sequences");
    let width = input.width();
    let count = sequences.iter().filter(|sequence| sequence.samples).count();
    let mut sampled = Tensor::any_on(step.device, count, width);
    let (mut behind, mut to) = (0, 0);
    for sequence in sequences {
        behind += sequence.rows;
        if sequence.samples {
            let row = input.slice().part((behind - 1) * width..behind * width);
            step.device.copy(sampled.slice_mut().part(to * width..(to + 1) * width), row);
            to += 1;
        }
    }
    sampled
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
