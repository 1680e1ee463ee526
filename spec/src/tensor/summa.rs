//! Products of matrices in q × q blocks, step by step: what 2-D and 2.5-D schemes are made of.
//!
//! Rank (i, j) of a layer of the grid is in row i and column j and holds block (i, j) of every matrix. In step l of q,
//! with ranks of a row on `Axis::TensorRow` and of a column on `Axis::TensorColumn`:
//!
//! ```text
//! C = A B     A(i,l) goes to its row, B(l,j) to its column;      C(i,j) += A(i,l) B(l,j)
//! C = A Bᵀ    B(l,j) goes to its column;   A(i,j) B(l,j)ᵀ is summed over the row for C(i,l)
//! C = Aᵀ B    A(i,l) goes to its row;      A(i,l)ᵀ B(i,j) is summed over the column for C(l,j)
//! ```
//!
//! With d layers each holds 1/d of the rows of X and Y, and all of W.
//! Source: van de Geijn & Watts 1997, Concurrency 9(4), 255–274; Xu et al. 2021, arXiv 2104.05343, section 3.1.

use super::{LayerStep, Linear, LinearSteps, LookUp, Overlap, Parts, Role, TensorGrid, Volume, collective};
use crate::collective::CollectiveKind::{self, AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
use crate::program::Axis;

/// See `TensorScheme::parts`.
pub(super) fn parts(grid: &TensorGrid) -> Parts {
    Parts { batch: grid.rows * grid.depth, sequence: 1, hidden: grid.rows, width: grid.rows }
}

/// See `TensorScheme::linear`. Y = X W with dX = dY Wᵀ and dW = Xᵀ dY; a head's Y = X Eᵀ with dX = dY E and
/// dE = dYᵀ X. Where there are several layers, each has a summand of the weight's gradient.
pub(super) fn linear(grid: &TensorGrid, layer: &Linear) -> LinearSteps {
    let [m, k, n] = local(grid, layer);
    let blocks = Blocks { grid };
    let (input, output, weight) = (m * k, m * n, k * n);
    let (forward, input_gradient, mut weight_gradient) = match layer.role {
        Role::Column(_) | Role::Row(_) => (
            blocks.plain(["broadcast input", "broadcast weight"], [m, n, k]),
            blocks.transposed("broadcast weight", weight, ["reduce gradient"], [m, k, n]),
            blocks.turned("broadcast input", input, [k, n, m]),
        ),
        Role::Head => (
            blocks.transposed("broadcast weight", weight, ["reduce output"], [m, n, k]),
            blocks.plain(["broadcast gradient", "broadcast weight"], [m, k, n]),
            blocks.turned("broadcast gradient", output, [n, k, m]),
        ),
    };
    weight_gradient.extend(sum_over_depth(grid, weight));
    LinearSteps { forward, input_gradient, weight_gradient, weight, kept: kept(layer, input) }
}

/// See `TensorScheme::look_up`: every rank looks up all tokens of its layer in its rows of the table, and its column
/// sums what they find. (Colossal-AI's vocabulary-parallel 2-D embedding.)
pub(super) fn look_up(grid: &TensorGrid, tokens: usize, [entries, width]: [usize; 2]) -> LookUp {
    let q = grid.rows;
    let (tokens, width) = (tokens / grid.depth, width / q);
    let exchange = |name, kind| vec![collective(name, kind, Axis::TensorColumn, tokens * width)];
    LookUp {
        tokens,
        width,
        forward: [Vec::new(), exchange("reduce output", ReduceScatter)],
        backward: [
            exchange("gather gradient", AllGather),
            sum_over_depth(grid, entries / q * width).into_iter().collect(),
        ],
    }
}

/// See `TensorScheme::volume`: (q − 1)/q² (M K/d + K N) in forward, twice that and 2 (d − 1)/d K N/q² in backward. A
/// head moves its output instead of its input.
pub(super) fn volume(grid: &TensorGrid, layer: &Linear) -> Volume {
    let [q, d] = [grid.rows as f64, grid.depth as f64];
    let [m, k, n] = [layer.tokens, layer.inner, layer.outer].map(|size| size as f64);
    let activations = if layer.role == Role::Head { m * n } else { m * k };
    let product = (q - 1.0) / (q * q) * (activations / d + k * n);
    Volume { forward: product, backward: 2.0 * product + 2.0 * (d - 1.0) / d * k * n / (q * q) }
}

/// M/(q d), K/q, N/q.
fn local(grid: &TensorGrid, layer: &Linear) -> [usize; 3] {
    let q = grid.rows;
    [layer.tokens / (q * grid.depth), layer.inner / q, layer.outer / q]
}

fn kept(layer: &Linear, input: usize) -> usize {
    let shared = layer.role == Role::Column(super::Input::Shared);
    if shared { 0 } else { input }
}

fn sum_over_depth(grid: &TensorGrid, weight: usize) -> Option<LayerStep> {
    let sum = collective("reduce weight gradient", AllReduce, Axis::TensorDepth, weight);
    (grid.depth > 1).then_some(sum)
}

struct Blocks<'a> {
    grid: &'a TensorGrid,
}

impl Blocks<'_> {
    /// A B, (m × k) · (k × n) on each rank.
    fn plain(&self, [first, second]: [&'static str; 2], [m, n, k]: [usize; 3]) -> Vec<LayerStep> {
        let moved = [
            self.step(first, Broadcast, Axis::TensorRow, m * k),
            self.step(second, Broadcast, Axis::TensorColumn, k * n),
        ];
        self.steps(&moved, LayerStep::Product { size: [m, n, k], held: self.buffers(m * k + k * n) }, None)
    }

    /// A Bᵀ, of which B's block is `moved`.
    fn transposed(
        &self,
        broadcast: &'static str,
        moved: usize,
        [reduce]: [&'static str; 1],
        size: [usize; 3],
    ) -> Vec<LayerStep> {
        let first = [self.step(broadcast, Broadcast, Axis::TensorColumn, moved)];
        let last = self.step(reduce, Reduce, Axis::TensorRow, size[0] * size[1]);
        self.steps(&first, LayerStep::Product { size, held: self.buffers(moved) }, Some(last))
    }

    /// Aᵀ B, of which A's block is `moved`.
    fn turned(&self, broadcast: &'static str, moved: usize, size: [usize; 3]) -> Vec<LayerStep> {
        let first = [self.step(broadcast, Broadcast, Axis::TensorRow, moved)];
        let last = self.step("reduce weight gradient", Reduce, Axis::TensorColumn, size[0] * size[1]);
        self.steps(&first, LayerStep::Product { size, held: self.buffers(moved) }, Some(last))
    }

    /// q times: broadcasts, a product, a reduction. With overlap, the operands of the next product travel during
    /// each, into a second buffer, and what the last one left is summed.
    fn steps(&self, first: &[LayerStep], product: LayerStep, last: Option<LayerStep>) -> Vec<LayerStep> {
        let waited: Vec<LayerStep> = first.iter().map(LayerStep::waited).collect();
        let mut steps = Vec::new();
        for step in 0..self.grid.rows {
            match self.grid.overlap {
                Overlap::Waited => steps.extend(&waited),
                Overlap::Overlapped => {
                    if step == 0 {
                        steps.extend(&waited);
                    }
                    if step + 1 < self.grid.rows {
                        steps.extend(first);
                    }
                }
            }
            steps.push(product);
            steps.extend(last);
        }
        steps
    }

    fn step(&self, name: &'static str, kind: CollectiveKind, axis: Axis, elements: usize) -> LayerStep {
        let beside_next = self.grid.overlap == Overlap::Overlapped;
        LayerStep::Collective { name, kind, axis, elements, beside_next }
    }

    fn buffers(&self, elements: usize) -> usize {
        if self.grid.overlap == Overlap::Overlapped { 2 * elements } else { elements }
    }
}

impl LayerStep {
    /// The step, with the next kernel waiting for it.
    fn waited(&self) -> LayerStep {
        match *self {
            LayerStep::Collective { name, kind, axis, elements, .. } => {
                collective(name, kind, axis, elements)
            }
            other => other,
        }
    }
}
