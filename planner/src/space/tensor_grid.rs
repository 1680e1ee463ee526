//! How the ranks of the tensor axis share a layer, and in which grid.

use super::dimension::{Dimension, Given, Values};
use crate::candidate::Candidate;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::tensor::TENSOR_SCHEMES;

/// The first scheme, which has no grid, or every scheme with every number of rows that its grid can have.
pub(super) struct TensorGrid;

impl Dimension for TensorGrid {
    fn key(&self) -> &'static str {
        "tensor-scheme"
    }

    fn summary(&self) -> &'static str {
        "how they share it: rows and columns, or blocks of a grid"
    }

    fn values(&self) -> Values {
        Values::Names(TENSOR_SCHEMES.iter().map(|scheme| scheme.name()).collect())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let known: Vec<&'static str> = TENSOR_SCHEMES.iter().map(|scheme| scheme.name()).collect();
        let tried = given.names(&known, |name| given.is_whole() || name == known[0]);
        let grids =
            (1..=draft.mesh.tensor.isqrt()).filter(|rows| draft.mesh.tensor.is_multiple_of(rows * rows));
        let mut options = Vec::new();
        for tensor_rows in grids {
            let mesh = Mesh { tensor_rows, ..draft.mesh };
            let suits = TENSOR_SCHEMES.iter().filter(|scheme| scheme.check(&mesh).is_ok());
            let tried = suits.map(|scheme| scheme.name()).filter(|name| tried.contains(name));
            options.extend(tried.map(|tensor_scheme| Candidate { mesh, tensor_scheme, ..*draft }));
        }
        options
    }

    fn value(&self, candidate: &Candidate) -> String {
        candidate.tensor_scheme.into()
    }
}
