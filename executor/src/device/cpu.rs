//! The cores of this machine: numbers are the host's, and are computed on where they lie.

mod attention;
mod dropout;
mod experts;
mod generation;
mod grid;
mod optimizer;
mod rows;
mod step;
mod tokens;

use super::{Allocator, Columns, Device, DeviceSlice, Matrix, Numbers, Product, Slice, SliceMut};
use crate::device::host_buffers::take_buffer;
use crate::error::Fault;
use std::borrow::Cow;
use trainwright_kernels::cuda::{Number, StopFlag};
use trainwright_kernels::norm::sum_of_squares;
use trainwright_kernels::{self as kernels, Threads, elementwise, multiply};

/// Some cores.
pub(crate) struct Cpu {
    pub threads: Threads,
}

fn matrix(matrix: Matrix) -> kernels::Matrix<f32> {
    let rows = kernels::Matrix::rows(matrix.data.host(), matrix.width);
    if matrix.transposed { rows.transposed() } else { rows }
}

impl Allocator for Cpu {
    fn free(&self, memory: DeviceSlice) {
        unreachable!("{memory:?} is of no CPU");
    }
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

    fn stop_when(&self, _: StopFlag) {}

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

    fn multiply(&self, out: SliceMut, Product { left, right, onto, bias, fp8 }: Product) {
        let out = out.host();
        let rounded = fp8.map(|[left_rounded, right_rounded]| {
            (left_rounded.rounded(left.data.host()), right_rounded.rounded(right.data.host()))
        });
        let (left, right) = match &rounded {
            Some((left_rounded, right_rounded)) => (
                Matrix { data: Slice::Host(left_rounded), ..left },
                Matrix { data: Slice::Host(right_rounded), ..right },
            ),
            None => (left, right),
        };
        multiply(out, onto, matrix(left), matrix(right), self.threads);
        if let Some(bias) = bias {
            elementwise::add_bias(out, bias.host());
        }
    }

    fn squares(&self, all: &[Slice]) -> Vec<f64> {
        all.iter().map(|numbers| sum_of_squares(numbers.host(), self.threads)).collect()
    }
}
