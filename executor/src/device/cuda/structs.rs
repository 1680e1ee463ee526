//! The structs of kernels from the sizes that modules have.

use super::super::{DeviceSlice, Matrix, NormGradient, Slice};
use trainwright_kernels::activation::{self, FeedForward};
use trainwright_kernels::attention::{Attention, Mask};
use trainwright_kernels::cross_entropy::Columns;
use trainwright_kernels::cuda::activation::Function;
use trainwright_kernels::cuda::cross_entropy::CrossEntropy;
use trainwright_kernels::cuda::norm::NormBackward;
use trainwright_kernels::cuda::{Address, attention};
use trainwright_kernels::norm::Norm;

pub(super) fn int(count: usize) -> i32 {
    i32::try_from(count).expect("sizes of a microbatch are below 2³¹")
}

pub(super) fn address(slice: Option<Slice>) -> Address {
    slice.map_or(Address::NULL, |slice| slice.device().at)
}

pub(super) fn norm_backward(norm: &Norm, read: NormGradient) -> NormBackward {
    let x = read.x.device();
    let rows = x.length / norm.width;
    let left = read.left.device();
    NormBackward {
        x: x.at,
        gain: address(read.gain),
        out_gradient: read.gradient.device().at,
        mean: left.at,
        scale: left.at.after(4 * rows),
        rows: int(rows),
        width: int(norm.width),
        centred: i32::from(norm.centred),
        ..NormBackward::default()
    }
}

/// Of packed rows.
pub(super) fn attention_of(layer: &Attention, qkv: DeviceSlice) -> attention::Attention {
    let positions = qkv.length / layer.row() / layer.batch;
    let [q, k, v] = parts(layer, qkv);
    attention::Attention { q, k, v, ..attention_between(layer, [layer.row(); 3], [positions; 2]) }
}

/// Of rows of queries, keys and values that are so long, at that many positions of queries and of keys.
pub(super) fn attention_between(
    layer: &Attention,
    rows: [usize; 3],
    positions: [usize; 2],
) -> attention::Attention {
    let [q_row, k_row, v_row] = rows.map(|row| row as i64);
    let [queries, keys] = positions.map(int);
    attention::Attention {
        q_row,
        k_row,
        v_row,
        o_row: layer.output_row() as i64,
        batch: int(layer.batch),
        heads: int(layer.heads),
        kv_heads: int(layer.kv_heads),
        queries,
        keys,
        head_dim: int(layer.head_dim),
        value_head_dim: int(layer.value_head_dim),
        causal: i32::from(layer.mask == Mask::Causal),
        scale: (1.0 / (layer.head_dim as f64).sqrt()) as f32,
        ..attention::Attention::default()
    }
}
/// Where queries, keys and values begin in rows of all three.
pub(super) fn parts(layer: &Attention, qkv: DeviceSlice) -> [Address; 3] {
    let [queries, keys, _] = layer.columns();
    [0, queries, queries + keys].map(|column| qkv.at.after(column * qkv.number.size()))
}

/// Rows, columns and whether it lies the other way round.
pub(super) fn shape(matrix: &Matrix) -> ([usize; 2], bool) {
    let rows = matrix.data.len() / matrix.width;
    match matrix.transposed {
        true => ([matrix.width, rows], true),
        false => ([rows, matrix.width], false),
    }
}

pub(super) fn cross_entropy_of(columns: &Columns, logits: DeviceSlice, tokens: usize) -> CrossEntropy {
    CrossEntropy {
        logits: logits.at,
        tokens: int(tokens),
        width: int(columns.width),
        first: int(columns.first),
        valid: int(columns.valid),
        ..CrossEntropy::default()
    }
}

pub(super) fn activation(layer: &FeedForward) -> (Function, i32) {
    let function = match layer.activation {
        activation::Activation::Gelu => Function::Gelu,
        activation::Activation::Silu => Function::Silu,
        activation::Activation::Relu => Function::Relu,
        activation::Activation::SquaredRelu => Function::SquaredRelu,
    };
    (function, i32::from(layer.gated))
}
