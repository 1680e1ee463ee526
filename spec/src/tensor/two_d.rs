//! 2-D: every matrix in q × q blocks on t = q² ranks.

use super::{Linear, LinearSteps, LookUp, Parts, TensorGrid, TensorScheme, Volume, in_grid, summa};
use crate::mesh::Mesh;
use crate::model::weights::Weight;
use crate::program::Axis;

/// Optimus: activations, weights and gradients all in blocks, products by SUMMA.
///
/// Row i holds 1/q of the sequences and column j 1/q of the hidden dim, of the heads and of the feed-forward width, so
/// that attention needs no exchange. A layer moves, forward, (q − 1)/q² of 7 b s h + 12 h² elements for the four
/// products of a GPT block, and twice that backward. Norms sum two numbers per token over the row. Biases, gains and
/// positions lie on all ranks of a column, which sum their gradients once a step (the paper holds them on the first
/// row and broadcasts them in every pass).
/// Source: Xu, Li, Gong & You 2021, arXiv 2104.05343, sections 3.1 and 3.2.
#[derive(Debug, Clone, Copy)]
pub(super) struct TwoD;

impl TensorScheme for TwoD {
    fn name(&self) -> &'static str {
        "2d"
    }

    fn summary(&self) -> &'static str {
        "weights and activations in q x q blocks on q² ranks; blocks broadcast along rows and columns (SUMMA, Optimus)"
    }

    fn source(&self) -> &'static str {
        "Xu, Li, Gong & You 2021, arXiv 2104.05343"
    }

    fn check(&self, mesh: &Mesh) -> Result<(), String> {
        let (t, q) = (mesh.tensor, mesh.tensor_rows);
        match q > 1 && t == q * q {
            true => Ok(()),
            false => Err(format!(
                "tensor scheme `2d` needs mesh.tensor = q² = {} with q = mesh.tensor_rows > 1",
                q * q
            )),
        }
    }

    fn parts(&self, grid: &TensorGrid) -> Parts {
        summa::parts(grid)
    }

    fn linear(&self, grid: &TensorGrid, layer: &Linear) -> LinearSteps {
        summa::linear(grid, layer)
    }

    fn look_up(&self, grid: &TensorGrid, tokens: usize, table: [usize; 2]) -> LookUp {
        summa::look_up(grid, tokens, table)
    }

    fn hidden_axis(&self) -> Option<Axis> {
        Some(Axis::TensorRow)
    }

    fn vocabulary_axis(&self) -> Axis {
        Axis::TensorRow
    }

    fn elements_on_rank(&self, grid: &TensorGrid, weight: &Weight) -> u64 {
        in_grid(grid, weight, grid.rows * grid.rows)
    }

    fn summed_over(&self, _grid: &TensorGrid, weight: &Weight) -> &'static [Axis] {
        if weight.is_vector() { &[Axis::TensorColumn] } else { &[] }
    }

    /// (q − 1)/q² (M K + K N) forward, twice that backward.
    fn volume(&self, grid: &TensorGrid, layer: &Linear) -> Volume {
        summa::volume(grid, layer)
    }
}
