//! 2.5-D: d layers of q × q blocks on t = d q² ranks.

use super::{Linear, LinearSteps, LookUp, Parts, TensorGrid, TensorScheme, Volume, in_grid, summa};
use crate::mesh::Mesh;
use crate::model::weights::Weight;
use crate::program::Axis;

/// Tesseract: the rows of the activations are cut over d layers, each of which has all weights in q × q blocks.
///
/// A layer's ranks move blocks of its sequences only, M/d of M, along shorter rows and columns than those of a
/// 2-D grid of the same number of ranks; the layers sum the weights' gradients after each product that makes them.
/// Source: Wang, Xu, Bian & You 2021, arXiv 2105.14500, section 3.
#[derive(Debug, Clone, Copy)]
pub(super) struct TwoAndAHalfD;

impl TensorScheme for TwoAndAHalfD {
    fn name(&self) -> &'static str {
        "2.5d"
    }

    fn summary(&self) -> &'static str {
        "d layers of q x q grids, each with all weights and 1/d of the batch (Tesseract)"
    }

    fn source(&self) -> &'static str {
        "Wang, Xu, Bian & You 2021, arXiv 2105.14500"
    }

    fn check(&self, mesh: &Mesh) -> Result<(), String> {
        let (t, q) = (mesh.tensor, mesh.tensor_rows);
        let depth = t / (q * q);
        match q > 1 && t == depth * q * q && (2..=q).contains(&depth) {
            true => Ok(()),
            false => Err(format!(
                "tensor scheme `2.5d` needs mesh.tensor = d q² with q = mesh.tensor_rows = {q} > 1, 1 < d <= q"
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
        if weight.is_vector() { &[Axis::TensorColumn, Axis::TensorDepth] } else { &[] }
    }

    /// (q − 1)/q² (M K/d + K N) forward; twice that and the layers' all-reduce, 2 (d − 1)/d K N/q², backward.
    fn volume(&self, grid: &TensorGrid, layer: &Linear) -> Volume {
        summa::volume(grid, layer)
    }
}
