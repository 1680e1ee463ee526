//! Graphs of operations by plain loops in f64.

use super::memory::{Memory, inside, inside_mut};
use crate::cuda::attention::Attention;
use crate::cuda::fused::graph::{
    Data, Function, Graph, Layout, Operation, Reduction, Storage, Tensor, TensorId,
};
use crate::cuda::launch::{Address, bf16_bits};

/// Elements of a tensor, packed.
type Values = Vec<f64>;

/// The memory that a graph reads and writes: address, bytes, whether it is written.
pub(super) fn touched(
    graph: &Graph,
    attention: &Attention,
    workspace: Address,
) -> Vec<(Address, usize, bool)> {
    let written: Vec<usize> = graph.operations.iter().map(|operation| out_of(operation).0).collect();
    let each = graph.tensors.iter().enumerate().filter_map(|(index, tensor)| {
        let at = given(tensor, attention, workspace)?;
        Some((at, bytes(tensor), written.contains(&index)))
    });
    each.collect()
}

/// Computes all operations.
pub(super) fn run(graph: &Graph, attention: &Attention, workspace: Address, memory: &mut Memory) {
    let mut values: Vec<Values> =
        graph.tensors.iter().map(|tensor| first_values(tensor, attention, workspace, memory)).collect();
    for operation in &graph.operations {
        let out = out_of(operation);
        let tensor = &graph.tensors[out.0];
        let mut made = done(graph, operation, &values);
        if tensor.data == Data::Bf16 {
            made.iter_mut().for_each(|x| *x = f64::from(rounded(*x)));
        }
        if let Some(at) = given(tensor, attention, workspace) {
            write(tensor, at, &made, memory);
        }
        values[out.0] = made;
    }
}

fn out_of(operation: &Operation) -> TensorId {
    match operation {
        Operation::Product { out, .. }
        | Operation::Pointwise { out, .. }
        | Operation::Reduce { out, .. }
        | Operation::Transpose { out, .. } => *out,
    }
}

fn given(tensor: &Tensor, attention: &Attention, workspace: Address) -> Option<Address> {
    match tensor.storage {
        Storage::Given(part) => Some(part.address(attention, workspace)),
        _ => None,
    }
}

fn size(data: Data) -> usize {
    if data == Data::Bf16 { 2 } else { 4 }
}

/// To the end of the last element.
fn bytes(tensor: &Tensor) -> usize {
    let Layout { sizes, strides } = tensor.layout;
    let last: i64 = sizes.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum();
    (last + 1) as usize * size(tensor.data)
}

/// All places in order, the last dimension innermost.
fn places(sizes: [i64; 4]) -> impl Iterator<Item = [i64; 4]> {
    let count: i64 = sizes.iter().product();
    let [_, b, c, d] = sizes;
    (0..count).map(move |at| [at / (b * c * d), at / (c * d) % b, at / d % c, at % d])
}

/// The index in a packed tensor of size `from` of a place in one of size `of`; smaller dimensions are broadcast in groups.
fn at(from: [i64; 4], of: [i64; 4], place: [i64; 4]) -> usize {
    let index = (0..4).fold(0, |index, side| {
        let share = of[side] / from[side];
        index * from[side] + place[side] / share
    });
    index as usize
}

fn rounded(x: f64) -> f32 {
    f32::from_bits(u32::from(bf16_bits(x as f32)) << 16)
}

fn offset(tensor: &Tensor, place: [i64; 4]) -> usize {
    let index: i64 = place.iter().zip(tensor.layout.strides).map(|(place, stride)| place * stride).sum();
    index as usize * size(tensor.data)
}

/// The values before any operation; undefined for tensors that operations write.
fn first_values(tensor: &Tensor, attention: &Attention, workspace: Address, memory: &Memory) -> Values {
    match tensor.storage {
        Storage::Between => Vec::new(),
        Storage::Scalar(part) => vec![f64::from(part.value(attention).expect("it is the host's"))],
        Storage::Given(part) => {
            let all = inside(memory, part.address(attention, workspace), bytes(tensor));
            let read = |place| {
                let from = offset(tensor, place);
                let word = |at: usize| u32::from(u16::from_le_bytes([all[from + at], all[from + at + 1]]));
                let bits = if tensor.data == Data::Bf16 { word(0) << 16 } else { word(2) << 16 | word(0) };
                f64::from(f32::from_bits(bits))
            };
            places(tensor.layout.sizes).map(read).collect()
        }
    }
}

fn write(tensor: &Tensor, to: Address, values: &[f64], memory: &mut Memory) {
    let all = inside_mut(memory, to, bytes(tensor));
    for (place, value) in places(tensor.layout.sizes).zip(values) {
        let from = offset(tensor, place);
        match tensor.data {
            Data::Bf16 => all[from..from + 2].copy_from_slice(&bf16_bits(*value as f32).to_le_bytes()),
            _ => all[from..from + 4].copy_from_slice(&(*value as f32).to_le_bytes()),
        }
    }
}

fn done(graph: &Graph, operation: &Operation, values: &[Values]) -> Values {
    let sizes = |tensor: &TensorId| graph.tensors[tensor.0].layout.sizes;
    match operation {
        Operation::Product { left, right, out } => {
            let (left_sizes, right_sizes, of) = (sizes(left), sizes(right), sizes(out));
            let sum = |[a, b, row, column]: [i64; 4]| {
                let term = |inner: i64| {
                    let left = values[left.0][at(left_sizes, left_sizes, [a, b, row, inner])];
                    let heads = [right_sizes[0], of[1], right_sizes[2], right_sizes[3]];
                    left * values[right.0][at(right_sizes, heads, [a, b, inner, column])]
                };
                (0..left_sizes[3]).map(term).sum()
            };
            places(of).map(sum).collect()
        }
        Operation::Pointwise { function, read, out } => {
            let of = sizes(out);
            let one = |place: [i64; 4]| {
                let x = |index: usize| values[read[index].0][at(sizes(&read[index]), of, place)];
                match function {
                    Function::Add => x(0) + x(1),
                    Function::Subtract => x(0) - x(1),
                    Function::Multiply => x(0) * x(1),
                    Function::Divide => x(0) / x(1),
                    Function::Exponential => x(0).exp(),
                    Function::Logarithm => x(0).ln(),
                    Function::Index(side) => place[*side as usize] as f64,
                    Function::AtLeast => f64::from(x(0) >= x(1)),
                    Function::Select if x(2) == 1.0 => x(0),
                    Function::Select => x(1),
                    Function::Identity => x(0),
                }
            };
            places(of).map(one).collect()
        }
        Operation::Reduce { how, x, out } => {
            let (from, of) = (sizes(x), sizes(out));
            let (first, join): (f64, fn(f64, f64) -> f64) = match how {
                Reduction::Sum => (0.0, |one, other| one + other),
                Reduction::Largest => (f64::NEG_INFINITY, f64::max),
            };
            let mut made = vec![first; of.iter().product::<i64>() as usize];
            for (place, value) in places(from).zip(&values[x.0]) {
                let to = &mut made[at(of, from, place)];
                *to = join(*to, *value);
            }
            made
        }
        Operation::Transpose { x, out } => {
            let from = sizes(x);
            places(sizes(out)).map(|[a, b, c, d]| values[x.0][at(from, from, [a, b, d, c])]).collect()
        }
    }
}
