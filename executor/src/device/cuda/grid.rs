//! Parts of norms; the host waits for the sums, which ranks put together.

use super::super::{Device, GridOps, NormGradient, RowOps, Slice, SliceMut};
use super::structs::{address, int};
use super::{Cuda, DeviceSlice};
use trainwright_kernels::cuda::norm::NormPart;
use trainwright_kernels::cuda::{Address, Launch};
use trainwright_kernels::norm::Norm;

fn part(norm: &Norm, x: DeviceSlice, left: Option<Slice>) -> NormPart {
    let rows = x.length / norm.width;
    let mean = address(left);
    NormPart {
        x: x.at,
        mean,
        scale: mean.after(4 * rows),
        rows: int(rows),
        width: int(norm.width),
        centred: i32::from(norm.centred),
        ..NormPart::default()
    }
}

fn part_back(norm: &Norm, read: NormGradient) -> NormPart {
    NormPart {
        gain: address(read.gain),
        out_gradient: read.gradient.device().at,
        ..part(norm, read.x.device(), Some(read.left))
    }
}

impl Cuda {
    /// Two numbers of each row, which a launch writes to an address.
    fn pairs(&self, rows: i32, launch: impl FnOnce(Address) -> Launch) -> Vec<f32> {
        let (sums, at) = self.scratch(2 * rows as usize);
        self.launch(&launch(at));
        self.read(sums.slice()).into_owned()
    }
}

impl GridOps for Cuda {
    fn row_sums(&self, norm: &Norm, x: Slice) -> Vec<f32> {
        let kernel = part(norm, x.device(), None);
        self.pairs(kernel.rows, |sums| NormPart { sums, ..kernel }.sums(self.number))
    }

    fn scale_rows(&self, norm: &Norm, x: Slice, left: Slice, vectors: [Option<Slice>; 2], out: SliceMut) {
        let [gain, bias] = vectors.map(address);
        let kernel = NormPart { gain, bias, out: out.device().at, ..part(norm, x.device(), Some(left)) };
        self.launch(&kernel.forward(self.number));
    }

    fn gradient_sums(&self, norm: &Norm, gradient: NormGradient) -> Vec<f32> {
        let kernel = part_back(norm, gradient);
        self.pairs(kernel.rows, |sums| NormPart { sums, ..kernel }.sums_back(self.number))
    }

    fn scale_gradient(
        &self,
        norm: &Norm,
        gradient: NormGradient,
        row_sums: (&[f32], usize),
        to_input: SliceMut,
    ) {
        let (mut numbers, sums) = self.scratch(row_sums.0.len());
        self.write(numbers.slice_mut(), row_sums.0);
        let out = to_input.device().at;
        let kernel = NormPart { sums, out, all_columns: int(row_sums.1), ..part_back(norm, gradient) };
        self.launch(&kernel.backward(self.number));
    }

    /// As of complete rows: what is left of them is known.
    fn part_vectors(&self, norm: &Norm, gradient: NormGradient, vectors: [Option<SliceMut>; 2]) {
        self.norm_vectors(norm, gradient, vectors);
    }
}
