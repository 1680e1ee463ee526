//! Tensor parallelism: how the ranks of the tensor axis share every layer of a transformer.
//!
//! A scheme is data: for a linear layer it gives the list of collectives and local products of its forward and
//! backward pass, and says which part of the activations and weights lies on a rank. It knows neither the software
//! nor the hardware, nor what a layer is for.
//!
//! ```text
//!            activations between layers        weights          what moves for Y = X W, forward
//! 1d         whole, or 1/t of the sequence     1/t              the whole sum of Y over t ranks
//! 2d         1/q batch × 1/q hidden            1/q²             blocks of X along rows, of W along columns
//! 2.5d       1/(d q) batch × 1/q hidden        1/q², d copies   the same in each of d layers
//! 3d         1/q² batch × 1/q hidden           1/q³             X, W and Y, each along one direction
//! ```
//!
//! Sizes before division: M tokens of a microbatch, K inner and N outer width; t tensor ranks in a grid of q × q × d.

mod one_d;
mod summa;
mod three_d;
mod two_and_a_half_d;
mod two_d;

use crate::catalog::nearest;
use crate::collective::CollectiveKind;
use crate::error::SpecError;
use crate::mesh::Mesh;
use crate::model::weights::Weight;
use crate::program::Axis;
use std::fmt::Debug;

/// A way to share layers among the ranks of the tensor axis.
pub trait TensorScheme: Sync + Debug {
    /// The name in plans and arguments.
    fn name(&self) -> &'static str;

    /// One line for `show tensor-schemes`.
    fn summary(&self) -> &'static str;

    /// Where it is from.
    fn source(&self) -> &'static str;

    /// Why the tensor ranks do not form its grid, if they do not.
    ///
    /// # Errors
    /// One line that says what the grid must be.
    fn check(&self, mesh: &Mesh) -> Result<(), String>;

    /// In how many parts what lies on the ranks is cut.
    fn parts(&self, grid: &TensorGrid) -> Parts;

    /// The steps of a linear layer, and the elements it keeps.
    fn linear(&self, grid: &TensorGrid, layer: &Linear) -> LinearSteps;

    /// The steps of the look-up of `tokens` in a table of (entries × width).
    fn look_up(&self, grid: &TensorGrid, tokens: usize, table: [usize; 2]) -> LookUp;

    /// The axis whose ranks hold parts of the same tokens' hidden vectors between layers; `None` if every rank has full vectors.
    fn hidden_axis(&self) -> Option<Axis>;

    /// The axis whose ranks hold the parts of the same tokens' logits.
    fn vocabulary_axis(&self) -> Axis;

    /// Elements of a weight on each rank, all copies together; each copy rounds up.
    fn elements_on_rank(&self, grid: &TensorGrid, weight: &Weight) -> u64;

    /// The axes whose ranks have parts of a weight's gradient after backward, to be summed once a step.
    fn summed_over(&self, grid: &TensorGrid, weight: &Weight) -> &'static [Axis];

    /// The closed form of what a linear layer makes each rank receive.
    fn volume(&self, grid: &TensorGrid, layer: &Linear) -> Volume;
}

/// Every scheme. A new one is a file in `tensor/` and a line here.
pub static TENSOR_SCHEMES: &[&dyn TensorScheme] =
    &[&one_d::OneD, &two_d::TwoD, &two_and_a_half_d::TwoAndAHalfD, &three_d::ThreeD];

/// The scheme of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn tensor_scheme(name: &str) -> Result<&'static dyn TensorScheme, SpecError> {
    TENSOR_SCHEMES.iter().copied().find(|scheme| scheme.name() == name).ok_or_else(|| {
        SpecError::UnknownName {
            kind: "tensor scheme",
            name: name.into(),
            nearest: nearest(name, TENSOR_SCHEMES.iter().map(|scheme| scheme.name())),
        }
    })
}

/// The ranks of the tensor axis and how they work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorGrid {
    /// Ranks, t = q² d in a grid.
    pub ranks: usize,
    /// Rows of the grid, and columns, q.
    pub rows: usize,
    /// Its layers, d.
    pub depth: usize,
    /// How activations lie between the layers of a 1-D scheme.
    pub between: Between,
    /// Whether exchanges in chunks overlap the products.
    pub overlap: Overlap,
}

impl TensorGrid {
    /// Of the tensor axis of a mesh.
    pub fn of(mesh: &Mesh, between: Between, overlap: Overlap) -> Self {
        let (ranks, rows) = (mesh.tensor, mesh.tensor_rows);
        TensorGrid { ranks, rows, depth: ranks / (rows * rows), between, overlap }
    }
}

/// How activations of a 1-D scheme lie between layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// All of the activations on each rank.
    Whole,
    /// 1/t of each sequence.
    Sequence,
}

/// How the chunks of a tensor are exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// A product waits for all of its operands.
    Waited,
    /// While one chunk is multiplied the next one travels.
    Overlapped,
}

/// In how many parts a rank's activations are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Sequences of a microbatch, everywhere.
    pub batch: usize,
    /// Each sequence, between layers.
    pub sequence: usize,
    /// The hidden dim, between layers.
    pub hidden: usize,
    /// Inside a layer: heads, the width of the feed-forward part, the vocabulary.
    pub width: usize,
}

/// A linear layer Y = X W, sizes before division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// Tokens of the microbatch, M.
    pub tokens: usize,
    /// Width of X, K.
    pub inner: usize,
    /// Width of Y, N.
    pub outer: usize,
    /// Which of a pair it is.
    pub role: Role,
}

/// Where a linear layer stands between what enters a block and what leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first of a pair: its output is cut by heads or columns.
    Column(Input),
    /// The second: from such parts back to the residual stream. In a parallel block attention and feed-forward part
    /// are added before one of them leaves.
    Row(Output),
    /// Like the first of a pair, with a weight that lies as the token embedding does, (N × K).
    Head,
}

/// Where a column-parallel product's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// From the residual stream: enters the tensor-parallel region here.
    Region,
    /// The same tensor as an earlier product's, which has gathered it and keeps it.
    Shared,
}

/// How a row-parallel product's output leaves the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// It is summed over the ranks and leaves the region.
    Leaves,
    /// It is added to another's, which is summed.
    Added,
}

/// One op of a layer; sizes in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerStep {
    /// A collective.
    Collective {
        /// Name of the span.
        name: &'static str,
        /// Which operation.
        kind: CollectiveKind,
        /// Over which axis.
        axis: Axis,
        /// The full tensor.
        elements: usize,
        /// Whether the next kernel need not wait for it: only the one after that.
        beside_next: bool,
    },
    /// A matrix product (m × k) · (k × n).
    Product {
        /// m, n, k.
        size: [usize; 3],
        /// Elements it reads that live no longer than needed here.
        held: usize,
    },
    /// The sum of `parts` tensors that have come from other ranks.
    Sum {
        /// How many.
        parts: usize,
        /// Each of them.
        elements: usize,
    },
}

/// A linear layer on a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearSteps {
    /// From X to Y.
    pub forward: Vec<LayerStep>,
    /// From Y's gradient to X's.
    pub input_gradient: Vec<LayerStep>,
    /// From X and Y's gradient to W's.
    pub weight_gradient: Vec<LayerStep>,
    /// Elements of the weight's gradient on the rank.
    pub weight: usize,
    /// Elements that forward keeps for backward.
    pub kept: usize,
}

/// The look-up in an embedding on a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUp {
    /// Tokens that it looks up.
    pub tokens: usize,
    /// Width of what it finds.
    pub width: usize,
    /// Before and after it in forward.
    pub forward: [Vec<LayerStep>; 2],
    /// Before and after the addition to the table's gradient in backward.
    pub backward: [Vec<LayerStep>; 2],
}

/// Elements that each rank receives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Volume {
    /// In forward.
    pub forward: f64,
    /// In backward.
    pub backward: f64,
}

impl LinearSteps {
    /// Its volume, counted step by step.
    pub fn volume(&self, mesh: &Mesh) -> Volume {
        let sum = |steps: &[LayerStep]| steps.iter().map(|step| step.received(mesh)).sum::<f64>();
        Volume {
            forward: sum(&self.forward),
            backward: sum(&self.input_gradient) + sum(&self.weight_gradient),
        }
    }
}

impl LayerStep {
    /// Elements that a rank receives, on average over the ranks of a group of p.
    ///
    /// All-reduce 2 (p − 1)/p n, all-gather and reduce-scatter (p − 1)/p n (Patarasuk & Yuan 2009); of p broadcasts
    /// of n, one from each, a rank receives p − 1, and as many as root of one of p reductions; a message n.
    pub fn received(&self, mesh: &Mesh) -> f64 {
        let LayerStep::Collective { kind, axis, elements, .. } = *self else { return 0.0 };
        let ranks = mesh.size(axis) as f64;
        let others = (ranks - 1.0) / ranks;
        elements as f64
            * match kind {
                CollectiveKind::AllReduce => 2.0 * others,
                CollectiveKind::SendReceive => 1.0,
                CollectiveKind::Barrier => 0.0,
                CollectiveKind::AllGather
                | CollectiveKind::ReduceScatter
                | CollectiveKind::AllToAll
                | CollectiveKind::Broadcast
                | CollectiveKind::Reduce => others,
            }
    }
}

/// A collective that the next kernel waits for.
fn collective(name: &'static str, kind: CollectiveKind, axis: Axis, elements: usize) -> LayerStep {
    LayerStep::Collective { name, kind, axis, elements, beside_next: false }
}

/// One that the next kernel does not wait for.
fn overlapping(name: &'static str, kind: CollectiveKind, axis: Axis, elements: usize) -> LayerStep {
    LayerStep::Collective { name, kind, axis, elements, beside_next: true }
}

/// Elements of a weight on a rank of a grid: a matrix in `blocks` blocks, a vector in q parts.
fn in_grid(grid: &TensorGrid, weight: &Weight, blocks: usize) -> u64 {
    let parts = if weight.is_vector() { grid.rows } else { blocks };
    weight.elements.div_ceil(parts as u64).saturating_mul(weight.copies)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 × 32 numbers by 32 × 16 on a grid of two rows.
    fn layer(input: Input) -> Linear {
        Linear { tokens: 64, inner: 32, outer: 16, role: Role::Column(input) }
    }

    fn steps(scheme: &str, ranks: usize, depth: usize, overlap: Overlap, input: Input) -> LinearSteps {
        let grid = TensorGrid { ranks, rows: 2, depth, between: Between::Whole, overlap };
        tensor_scheme(scheme).unwrap().linear(&grid, &layer(input))
    }

    /// A product holds a block of X, 32 × 16, and one of W, 16 × 8; those of the next one as well, if they travel meanwhile.
    #[test]
    fn blocks_that_travel_beside_a_product_have_a_second_buffer() {
        for (overlap, expected) in [(Overlap::Waited, 512 + 128), (Overlap::Overlapped, 2 * (512 + 128))] {
            let forward = steps("2d", 4, 1, overlap, Input::Region).forward;
            let held = forward.iter().filter_map(|step| match step {
                LayerStep::Product { size, held } => Some((*size, *held)),
                _ => None,
            });
            assert_eq!(held.collect::<Vec<_>>(), [([32, 8, 16], expected); 2], "{overlap:?}");
        }
    }

    /// What a rank has gathered in forward: 32 × 16 of X, unless an earlier product keeps it, and 16 × 8 of W.
    #[test]
    fn a_cube_keeps_what_it_has_gathered() {
        let kept = |input| steps("3d", 8, 2, Overlap::Waited, input).kept;
        assert_eq!((kept(Input::Region), kept(Input::Shared)), (512 + 128, 128));
    }
}
