//! Sums, norms, rotations and nonlinearities: a launch each.

use super::super::{DeviceSlice, NormGradient, Numbers, Positions, Rotation, RowOps, Slice, SliceMut, Sum};
use super::structs::{activation, address, int, norm_backward};
use super::{Address, Cuda, Number};
use trainwright_kernels::activation::FeedForward;
use trainwright_kernels::cuda::activation::{Activation, Direction, Residual};
use trainwright_kernels::cuda::norm::{NormBackward, NormForward};
use trainwright_kernels::cuda::reduce::ColumnSum;
use trainwright_kernels::cuda::rotary::Rotary;
use trainwright_kernels::norm::Norm;
use trainwright_kernels::rotary::Turn;

impl Cuda {
    pub(super) fn residual(&self, x: DeviceSlice, [bias, residual]: [Option<Slice>; 2], width: usize) {
        let rows = int(x.length / width);
        let (bias, residual) = (address(bias), address(residual));
        let kernel = Residual { x: x.at, bias, residual, out: x.at, rows, width: int(width) };
        // Parts of rows may begin anywhere.
        let aligned = [x.at, bias, residual].iter().all(|address| address.0 % 16 == 0);
        let version = if aligned {
            kernel.launch(x.number, self.gpu)
        } else {
            kernel.ladder(x.number, self.gpu).swap_remove(0)
        };
        self.launch(&version);
    }

    /// Leaves means and deviations of all rows. `added` has what is added before.
    fn norm_forward(
        &self,
        norm: &Norm,
        x: DeviceSlice,
        added: NormForward,
        vectors: [Option<Slice>; 2],
        out: DeviceSlice,
    ) -> Numbers {
        let rows = x.length / norm.width;
        let (left, at) = self.scratch(2 * rows);
        let [gain, bias] = vectors.map(address);
        let kernel = NormForward {
            x: x.at,
            gain,
            bias,
            out: out.at,
            mean: at,
            scale: at.after(4 * rows),
            rows: int(rows),
            width: int(norm.width),
            epsilon: norm.epsilon as f32,
            centred: i32::from(norm.centred),
            ..added
        };
        self.launch(&kernel.launch(x.number));
        left
    }

    /// Launches what leaves each block's sums for gain and bias, and adds them up.
    fn with_vectors(
        &self,
        kernel: NormBackward,
        vectors: [Option<SliceMut>; 2],
        launch: impl FnOnce(NormBackward),
    ) {
        let length = kernel.blocks(self.gpu) as usize * kernel.width as usize;
        let sums = vectors.map(|to| to.map(|to| (self.scratch(length), to.device())));
        let [partial_gain, partial_bias] =
            sums.each_ref().map(|sum| sum.as_ref().map_or(Address::NULL, |((_, at), _)| *at));
        launch(NormBackward { partial_gain, partial_bias, ..kernel });
        for ((_, at), to) in sums.iter().flatten() {
            self.column_sum(DeviceSlice { at: *at, length, number: Number::F32 }, *to);
        }
    }

    /// Adds the sum of rows to f32.
    fn column_sum(&self, x: DeviceSlice, out: DeviceSlice) {
        let (rows, width) = (int(x.length / out.length), int(out.length));
        let kernel = ColumnSum { x: x.at, out: out.at, rows, width, add: 1 };
        let shares = kernel.shares(self.gpu) as usize;
        let (_partial, partial) = self.scratch(if shares > 1 { shares * out.length } else { 0 });
        kernel.launches(x.number, partial, self.gpu).iter().for_each(|launch| self.launch(launch));
    }
}

impl RowOps for Cuda {
    fn add(&self, x: SliceMut, other: Slice) {
        let x = x.device();
        self.residual(x, [None, Some(other)], x.length);
    }

    fn add_residual(&self, x: SliceMut, past: Slice, bias: Option<Slice>) {
        let x = x.device();
        let width = bias.map_or(x.length, |bias| bias.len());
        self.residual(x, [bias, Some(past)], width);
    }

    fn add_bias(&self, x: SliceMut, bias: Slice) {
        self.residual(x.device(), [Some(bias), None], bias.len());
    }

    fn bias_gradient(&self, gradient: Slice, bias: SliceMut) {
        self.column_sum(gradient.device(), bias.device());
    }

    fn norm(&self, norm: &Norm, x: Slice, vectors: [Option<Slice>; 2], out: SliceMut) -> Numbers {
        self.norm_forward(norm, x.device(), NormForward::default(), vectors, out.device())
    }

    fn adds_in_norms(&self) -> bool {
        true
    }

    fn norm_of_sum(&self, norm: &Norm, sum: Sum, vectors: [Option<Slice>; 2], out: SliceMut) -> Numbers {
        let (x, residual) = (sum.x.device(), sum.past.device().at);
        let added =
            NormForward { residual, added_bias: address(sum.bias), sum: x.at, ..NormForward::default() };
        self.norm_forward(norm, x, added, vectors, out.device())
    }

    fn norm_gradient(&self, norm: &Norm, gradient: NormGradient, to_input: SliceMut) {
        let kernel = NormBackward { gradient: to_input.device().at, ..norm_backward(norm, gradient) };
        self.launch(&kernel.input(self.number, self.gpu));
    }

    fn norm_vectors(&self, norm: &Norm, gradient: NormGradient, vectors: [Option<SliceMut>; 2]) {
        let kernel = norm_backward(norm, gradient);
        self.with_vectors(kernel, vectors, |kernel| self.launch(&kernel.vectors(self.number, self.gpu)));
    }

    fn makes_norm_gradients_at_once(&self, norm: &Norm) -> bool {
        let kernel = NormBackward { width: int(norm.width), ..NormBackward::default() };
        kernel.launch(self.number, self.gpu).len() == 1
    }

    fn norm_gradients(
        &self,
        norm: &Norm,
        gradient: NormGradient,
        vectors: [Option<SliceMut>; 2],
        to_input: SliceMut,
    ) {
        let kernel = NormBackward { gradient: to_input.device().at, ..norm_backward(norm, gradient) };
        self.with_vectors(kernel, vectors, |kernel| {
            kernel.launch(self.number, self.gpu).iter().for_each(|launch| self.launch(launch));
        });
    }

    fn rotate(&self, x: SliceMut, rotation: Rotation, positions: Positions) {
        let x = x.device();
        let [cosines, sines] = self.tables.borrow_mut().angles(self, &rotation);
        let Rotation { heads, rotated, turn, .. } = rotation;
        let mut at = x.at;
        for range in positions.of {
            let tokens = range.len() * positions.batch;
            let kernel = Rotary {
                x: at,
                cosines,
                sines,
                tokens: int(tokens),
                row: int(heads.row),
                first: int(heads.first),
                heads: int(heads.count),
                head_dim: int(heads.width),
                half: int(rotated / 2),
                batch: int(positions.batch),
                first_position: int(range.start),
                direction: if turn == Turn::There { 1.0 } else { -1.0 },
            };
            at = at.after(tokens * heads.row * x.number.size());
            self.launch(&kernel.launch(x.number, self.gpu));
        }
    }

    fn activate(&self, layer: &FeedForward, x: Slice, out: SliceMut) {
        let (out, (function, gated)) = (out.device(), activation(layer));
        let (rows, width) = (int(out.length / layer.width), int(layer.width));
        let kernel =
            Activation { x: x.device().at, out: out.at, rows, width, gated, ..Activation::default() };
        self.launch(&kernel.launch(function, Direction::Forward, out.number, self.gpu));
    }

    fn activation_gradient(&self, layer: &FeedForward, x: Slice, gradient: Slice, to_input: SliceMut) {
        let (gradient, (function, gated)) = (gradient.device(), activation(layer));
        let kernel = Activation {
            x: x.device().at,
            bias: Address::NULL,
            out_gradient: gradient.at,
            out: to_input.device().at,
            rows: int(gradient.length / layer.width),
            width: int(layer.width),
            gated,
        };
        self.launch(&kernel.launch(function, Direction::Backward, gradient.number, self.gpu));
    }
}
