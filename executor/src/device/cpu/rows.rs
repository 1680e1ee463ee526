//! Sums, norms, rotations and nonlinearities on slices.

use super::super::{NormGradient, Numbers, Positions, Rotation, RowOps, Slice, SliceMut};
use super::Cpu;
use trainwright_kernels::activation::FeedForward;
use trainwright_kernels::elementwise;
use trainwright_kernels::norm::Norm;
use trainwright_kernels::rotary::Rotary;

impl RowOps for Cpu {
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

    fn rotate(&self, x: SliceMut, rotation: Rotation, positions: Positions) {
        let Rotation { heads, rotated, base, turn, .. } = rotation;
        let positions = positions.by_row();
        let first = positions.iter().copied().min().unwrap_or(0);
        let end = positions.iter().copied().max().map_or(0, |last| last + 1);
        if end - first > positions.len() {
            // Single tokens of sequences of different lengths: angles of their positions alone.
            let angles = Rotary::<f32>::of(rotated, base, positions.iter().copied());
            return angles.turn(x.host(), heads, |row| row, turn, self.threads);
        }
        let angles = Rotary::<f32>::new(rotated, base, first..end);
        angles.turn(x.host(), heads, |row| positions[row], turn, self.threads);
    }

    fn activate(&self, layer: &FeedForward, x: Slice, out: SliceMut) {
        layer.forward(x.host(), out.host(), self.threads);
    }

    fn activation_gradient(&self, layer: &FeedForward, x: Slice, gradient: Slice, to_input: SliceMut) {
        layer.backward(x.host(), gradient.host(), to_input.host(), self.threads);
    }
}
