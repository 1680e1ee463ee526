//! 3-D: every tensor cut in all three directions of a cube of t = q³ ranks.

use super::{Input, LayerStep, Linear, LinearSteps, LookUp, Parts, Role, TensorGrid, TensorScheme, Volume};
use super::{collective, in_grid, overlapping};
use crate::collective::CollectiveKind::{AllGather, ReduceScatter};
use crate::mesh::Mesh;
use crate::model::weights::Weight;
use crate::program::Axis;

/// A product of an input gathered in one direction and a weight gathered in another, its output summed and scattered
/// in the third.
///
/// Between layers a rank holds [M/q² × K/q]: the hidden dim is cut along rows, the tokens along depth and columns.
/// The input is gathered along its second cut, the weight [K/q × N/q²] along depth; the product
/// [M/q × K/q] · [K/q × N/q] is a summand, whose sum is scattered along the input's hidden cut. So the next layer
/// finds its hidden dim cut along columns and gives it back along rows: the two directions change places in each
/// layer. Backward gathers the output's gradient and scatters the two sums; gathered inputs and weights are kept
/// (as Colossal-AI's layers do), so that it does not gather them again.
/// Source: Bian, Xu, Wang & You 2021, arXiv 2105.14450, section 3; what is kept: hpcaitech/ColossalAI
/// colossalai/legacy/nn/layer/parallel_3d/_operation.py.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreeD;

/// Along which the weights are gathered and their gradients scattered.
const WEIGHT: Axis = Axis::TensorDepth;

impl TensorScheme for ThreeD {
    fn name(&self) -> &'static str {
        "3d"
    }

    fn summary(&self) -> &'static str {
        "a cube of q³ ranks; inputs, weights and outputs each gathered or scattered along one direction"
    }

    fn source(&self) -> &'static str {
        "Bian, Xu, Wang & You 2021, arXiv 2105.14450"
    }

    fn check(&self, mesh: &Mesh) -> Result<(), String> {
        let (t, q) = (mesh.tensor, mesh.tensor_rows);
        match q > 1 && t == q.saturating_pow(3) {
            true => Ok(()),
            false => Err(format!(
                "tensor scheme `3d` needs mesh.tensor = q³ = {} with q = mesh.tensor_rows > 1",
                q.saturating_pow(3)
            )),
        }
    }

    fn parts(&self, grid: &TensorGrid) -> Parts {
        let q = grid.rows;
        Parts { batch: q * q, sequence: 1, hidden: q, width: q }
    }

    fn linear(&self, grid: &TensorGrid, layer: &Linear) -> LinearSteps {
        let q = grid.rows;
        let [m, k, n] = [layer.tokens / q, layer.inner / q, layer.outer / q];
        let (input, output) = match layer.role {
            Role::Column(_) | Role::Head => (Axis::TensorColumn, Axis::TensorRow),
            Role::Row(_) => (Axis::TensorRow, Axis::TensorColumn),
        };
        let shared = layer.role == Role::Column(Input::Shared);
        let product = |size, held| LayerStep::Product { size, held };
        let gather_input = collective("gather input", AllGather, input, m * k);
        let forward = [
            collective("gather weight", AllGather, WEIGHT, k * n),
            product([m, n, k], 0),
            collective("reduce output", ReduceScatter, output, m * n),
        ];
        LinearSteps {
            forward: (!shared).then_some(gather_input).into_iter().chain(forward).collect(),
            input_gradient: vec![
                collective("gather gradient", AllGather, output, m * n),
                product([m, k, n], m * n),
                overlapping("reduce gradient", ReduceScatter, input, m * k),
            ],
            weight_gradient: vec![
                product([k, n, m], m * n),
                collective("reduce weight gradient", ReduceScatter, WEIGHT, k * n),
            ],
            weight: (k * n).div_ceil(q),
            kept: if shared { k * n } else { m * k + k * n },
        }
    }

    /// A product with a matrix of ones and zeros, [M × V] · [V × h], that needs no input: the tokens' numbers are on
    /// every rank.
    fn look_up(&self, grid: &TensorGrid, tokens: usize, [entries, width]: [usize; 2]) -> LookUp {
        let q = grid.rows;
        let (tokens, entries, width) = (tokens / q, entries / q, width / q);
        let table = |name, kind| vec![collective(name, kind, WEIGHT, entries * width)];
        let found = |name, kind| vec![collective(name, kind, Axis::TensorColumn, tokens * width)];
        LookUp {
            tokens,
            width,
            forward: [table("gather weight", AllGather), found("reduce output", ReduceScatter)],
            backward: [found("gather gradient", AllGather), table("reduce weight gradient", ReduceScatter)],
        }
    }

    fn hidden_axis(&self) -> Option<Axis> {
        Some(Axis::TensorRow)
    }

    fn vocabulary_axis(&self) -> Axis {
        Axis::TensorColumn
    }

    fn elements_on_rank(&self, grid: &TensorGrid, weight: &Weight) -> u64 {
        in_grid(grid, weight, grid.ranks)
    }

    /// Gains, the biases of second products and positions lie along rows, as the hidden dim does between layers; the
    /// biases of first products along columns. Each is on the q² ranks of the other two directions.
    fn summed_over(&self, _grid: &TensorGrid, weight: &Weight) -> &'static [Axis] {
        use crate::model::weights::Split;
        match (weight.is_vector(), weight.split) {
            (false, _) => &[],
            (true, Split::Replicated) => &[Axis::TensorColumn, Axis::TensorDepth],
            (true, Split::Tensor | Split::KeyValue { .. }) => &[Axis::TensorRow, Axis::TensorDepth],
        }
    }

    /// (q − 1)/q³ (M K + K N + M N), forward and backward alike.
    fn volume(&self, grid: &TensorGrid, layer: &Linear) -> Volume {
        let q = grid.rows as f64;
        let [m, k, n] = [layer.tokens, layer.inner, layer.outer].map(|size| size as f64);
        let part = (q - 1.0) / q.powi(3);
        let input = if layer.role == Role::Column(Input::Shared) { 0.0 } else { m * k };
        Volume { forward: part * (input + k * n + m * n), backward: part * (m * k + k * n + m * n) }
    }
}
