//! What dense layers need of a device except products: sums, norms, rotations and nonlinearities of rows.

use super::super::{Numbers, Slice, SliceMut};
use std::ops::Range;
use trainwright_kernels::activation::FeedForward;
use trainwright_kernels::attention::Documents;
use trainwright_kernels::norm::Norm;
use trainwright_kernels::rotary::{Heads, Turn};

/// What backward of a norm reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormGradient<'a> {
    pub x: Slice<'a>,
    pub gain: Option<Slice<'a>>,
    /// What forward left.
    pub left: Slice<'a>,
    /// The output's gradient.
    pub gradient: Slice<'a>,
}

/// The end of a sublayer, and what is added to it.
#[derive(Debug)]
pub(crate) struct Sum<'a> {
    /// The sum takes its place.
    pub x: SliceMut<'a>,
    /// What went past the sublayer.
    pub past: Slice<'a>,
    /// Added to each row.
    pub bias: Option<Slice<'a>>,
}

/// Where the rows of tokens are in their sequences: row = place · batch + sequence, the place that of a position here. With
/// documents, positions are counted from the beginning of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Positions<'a> {
    pub of: &'a [Range<usize>],
    pub batch: usize,
    pub documents: Option<Documents<'a>>,
}

impl Positions<'_> {
    /// The position of each row.
    pub fn by_row(&self) -> Vec<usize> {
        let of_row = |position: usize, sequence: usize| match &self.documents {
            None => position,
            Some(documents) => documents.position(sequence, position),
        };
        let positions = self.of.iter().cloned().flatten();
        positions
            .flat_map(|position| (0..self.batch).map(move |sequence| of_row(position, sequence)))
            .collect()
    }
}

/// How heads turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    pub heads: Heads,
    /// Columns of a head that turn.
    pub rotated: usize,
    /// θ.
    pub base: f64,
    /// Tokens of a whole sequence.
    pub sequence: usize,
    pub turn: Turn,
}

/// A device that computes on rows.
pub(crate) trait RowOps {
    /// Adds other numbers.
    fn add(&self, x: SliceMut, other: Slice);

    /// Adds what went past a sublayer, and a bias to each row.
    fn add_residual(&self, x: SliceMut, past: Slice, bias: Option<Slice>);

    /// Adds a bias to each row.
    fn add_bias(&self, x: SliceMut, bias: Slice);

    /// Adds the sum of the rows of `gradient`.
    fn bias_gradient(&self, gradient: Slice, bias: SliceMut);

    /// A norm of rows, with gain and bias. Returns what backward needs apart from the input.
    fn norm(&self, norm: &Norm, x: Slice, vectors: [Option<Slice>; 2], out: SliceMut) -> Numbers;

    /// Whether it adds what went past a sublayer in the launch of the norm behind.
    fn adds_in_norms(&self) -> bool {
        false
    }

    /// The norm of a sum.
    fn norm_of_sum(&self, norm: &Norm, sum: Sum, vectors: [Option<Slice>; 2], out: SliceMut) -> Numbers {
        let Sum { mut x, past, bias } = sum;
        self.add_residual(x.again(), past, bias);
        self.norm(norm, x.as_slice(), vectors, out)
    }

    /// Adds the gradient of the input.
    fn norm_gradient(&self, norm: &Norm, gradient: NormGradient, to_input: SliceMut);

    /// Adds the gradients of gain and bias.
    fn norm_vectors(&self, norm: &Norm, gradient: NormGradient, vectors: [Option<SliceMut>; 2]);

    /// Whether it makes all gradients of a norm in one reading of the rows, and so had better be asked for all at once.
    fn makes_norm_gradients_at_once(&self, norm: &Norm) -> bool;

    /// Adds the gradients of gain, bias and input.
    fn norm_gradients(
        &self,
        norm: &Norm,
        gradient: NormGradient,
        vectors: [Option<SliceMut>; 2],
        to_input: SliceMut,
    ) {
        self.norm_vectors(norm, gradient, vectors);
        self.norm_gradient(norm, gradient, to_input);
    }

    /// Turns heads by their positions.
    fn rotate(&self, x: SliceMut, rotation: Rotation, positions: Positions);

    /// The nonlinearity of a feed-forward layer.
    fn activate(&self, layer: &FeedForward, x: Slice, out: SliceMut);

    /// The gradient of its input.
    fn activation_gradient(&self, layer: &FeedForward, x: Slice, gradient: Slice, to_input: SliceMut);
}
