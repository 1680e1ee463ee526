//! The cores of this machine: numbers are the host's, and are computed on where they lie.

mod attention;
mod dropout;
mod experts;
mod grid;
mod optimizer;
mod step;

use super::{
    Columns, Device, Far, LossTokens, Matrix, NormGradient, Numbers, Positions, Product, Rotation, Slice,
    SliceMut, Words, each_token,
};
use crate::error::Fault;
use crate::tensor::take_buffer;
use std::borrow::Cow;
use trainwright_kernels::activation::FeedForward;
use trainwright_kernels::cross_entropy::{self, Statistics};
use trainwright_kernels::cuda::Number;
use trainwright_kernels::embedding::Rows;
use trainwright_kernels::norm::{Norm, sum_of_squares};
use trainwright_kernels::rotary::Rotary;
use trainwright_kernels::{self as kernels, Threads, elementwise, multiply};

/// Some cores.
pub(crate) struct Cpu {
    pub threads: Threads,
}

fn matrix(matrix: Matrix) -> kernels::Matrix<f32> {
    let rows = kernels::Matrix::rows(matrix.data.host(), matrix.width);
    if matrix.transposed { rows.transposed() } else { rows }
}

impl Device for Cpu {
    /// Numbers of bf16 are kept as those of f32 that they are.
    fn number(&self) -> Number {
        Number::F32
    }

    fn any(&self, length: usize, _: Number) -> Numbers {
        Numbers::Host(take_buffer(length))
    }

    fn take(&self, data: Vec<f32>, _: Number) -> Numbers {
        Numbers::Host(data)
    }

    fn give_back(&self, far: Far) {
        unreachable!("{far:?} is of no CPU");
    }

    fn read<'a>(&self, from: Slice<'a>) -> Cow<'a, [f32]> {
        Cow::Borrowed(from.host())
    }

    fn write(&self, to: SliceMut, from: &[f32]) {
        to.host().copy_from_slice(from);
    }

    fn copy(&self, to: SliceMut, from: Slice) {
        to.host().copy_from_slice(from.host());
    }

    fn cast(&self, to: SliceMut, from: Slice) {
        self.copy(to, from);
    }

    fn copy_columns(&self, to: SliceMut, from: Slice, columns: Columns) {
        let Columns { width, from: [row, first], to: [to_row, to_first] } = columns;
        let rows = to.host().chunks_exact_mut(to_row).zip(from.host().chunks_exact(row));
        for (to, from) in rows {
            to[to_first..to_first + width].copy_from_slice(&from[first..first + width]);
        }
    }

    fn zero(&self, to: SliceMut) {
        to.host().fill(0.0);
    }

    fn finish(&self) {}

    fn mark(&self) {}

    fn marks(&self) -> Vec<f64> {
        Vec::new()
    }

    fn about(&self) -> [String; 2] {
        ["the cores of this machine".into(), String::new()]
    }

    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn multiply(&self, out: SliceMut, Product { left, right, onto, bias, eight }: Product) {
        let out = out.host();
        let rounded =
            eight.map(|[own, other]| (own.rounded(left.data.host()), other.rounded(right.data.host())));
        let (left, right) = match &rounded {
            Some((own, other)) => {
                (Matrix { data: Slice::Host(own), ..left }, Matrix { data: Slice::Host(other), ..right })
            }
            None => (left, right),
        };
        multiply(out, onto, matrix(left), matrix(right), self.threads);
        if let Some(bias) = bias {
            elementwise::add_bias(out, bias.host());
        }
    }

    fn add(&self, x: SliceMut, other: Slice) {
        elementwise::add(x.host(), other.host());
    }

    fn add_residual(&self, x: SliceMut, past: Slice, bias: Option<Slice>) {
        let x = x.host();
        elementwise::add(x, past.host());
        if let Some(bias) = bias {
            elementwise::add_bias(x, bias.host());
        }
    }

    fn add_bias(&self, x: SliceMut, bias: Slice) {
        elementwise::add_bias(x.host(), bias.host());
    }

    fn bias_gradient(&self, gradient: Slice, bias: SliceMut) {
        elementwise::bias_gradient(gradient.host(), bias.host());
    }

    /// Backward makes the rows' means and deviations again.
    fn norm(&self, norm: &Norm, x: Slice, vectors: [Option<Slice>; 2], out: SliceMut) -> Numbers {
        let [gain, bias] = vectors.map(|vector| vector.map(Slice::host));
        norm.forward(x.host(), gain, bias, out.host(), self.threads);
        Numbers::default()
    }

    fn norm_gradient(&self, norm: &Norm, gradient: NormGradient, to_input: SliceMut) {
        let gain = gradient.gain.map(Slice::host);
        norm.backward(gradient.x.host(), gain, gradient.gradient.host(), to_input.host(), self.threads);
    }

    fn norm_vectors(&self, norm: &Norm, gradient: NormGradient, vectors: [Option<SliceMut>; 2]) {
        let [gain, bias] = vectors.map(|vector| vector.map(SliceMut::host));
        norm.vector_gradients(gradient.x.host(), gradient.gradient.host(), gain, bias);
    }

    fn makes_norm_gradients_at_once(&self, _: &Norm) -> bool {
        false
    }

    fn rotate(&self, x: SliceMut, rotation: Rotation, Positions { of, batch }: Positions) {
        let Rotation { heads, rotated, base, sequence, turn } = rotation;
        let angles = Rotary::<f32>::new(rotated, base, 0..sequence);
        let positions: Vec<usize> = of.iter().cloned().flatten().collect();
        angles.turn(x.host(), heads, |row| positions[row / batch], turn, self.threads);
    }

    fn activate(&self, layer: &FeedForward, x: Slice, out: SliceMut) {
        layer.forward(x.host(), out.host(), self.threads);
    }

    fn activation_gradient(&self, layer: &FeedForward, x: Slice, gradient: Slice, to_input: SliceMut) {
        layer.backward(x.host(), gradient.host(), to_input.host(), self.threads);
    }

    fn look_up(&self, rows: Rows, table: Slice, entries: &Words, out: SliceMut) {
        rows.look_up(table.host(), entries.host(), out.host());
    }

    fn look_up_gradient(&self, rows: Rows, table: SliceMut, entries: &Words, gradient: Slice) {
        rows.add(table.host(), entries.host(), gradient.host());
    }

    fn add_positions(&self, x: SliceMut, width: usize, table: Slice, positions: Positions) {
        let table = table.host();
        let rows = x.host().chunks_exact_mut(positions.batch * width);
        for (rows, position) in rows.zip(positions.of.iter().cloned().flatten()) {
            elementwise::add_bias(rows, &table[position * width..(position + 1) * width]);
        }
    }

    fn positions_gradient(&self, gradient: Slice, width: usize, table: SliceMut, positions: Positions) {
        let table = table.host();
        let rows = gradient.host().chunks_exact(positions.batch * width);
        for (rows, position) in rows.zip(positions.of.iter().cloned().flatten()) {
            elementwise::bias_gradient(rows, &mut table[position * width..(position + 1) * width]);
        }
    }

    fn loss(&self, columns: &cross_entropy::Columns, logits: Slice, targets: &Words) -> Numbers {
        let each = columns.statistics(logits.host(), targets.host(), self.threads);
        let all = |of: fn(&Statistics<f32>) -> f32| each.iter().map(of);
        let three = all(|own| own.maximum).chain(all(|own| own.sum)).chain(all(|own| own.target));
        Numbers::Host(three.collect())
    }

    fn loss_gradient(&self, columns: &cross_entropy::Columns, logits: SliceMut, tokens: LossTokens) {
        let LossTokens { targets, three, weight } = tokens;
        let of_all: Vec<_> = each_token(three.host()).collect();
        columns.gradient(logits.host(), targets.host(), &of_all, weight, self.threads);
    }

    fn squares(&self, all: &[Slice]) -> Vec<f64> {
        all.iter().map(|own| sum_of_squares(own.host(), self.threads)).collect()
    }
}
