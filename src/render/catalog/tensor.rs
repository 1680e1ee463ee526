//! Tensor schemes: all of them as a table, one as TOML.

use super::print;
use crate::render::table::Column::Left;
use crate::render::table::wrapped_table;
use serde::Serialize;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::tensor::{
    Between, Input, Linear, Output, Overlap, Role, TENSOR_SCHEMES, TensorGrid, TensorScheme,
};

/// Every tensor scheme.
pub fn list() -> String {
    let rows = TENSOR_SCHEMES.iter();
    let rows = rows.map(|scheme| [scheme.name(), scheme.summary(), scheme.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    wrapped_table(&[Left("scheme"), Left("summary"), Left("source")], rows)
}

/// A tensor scheme with what the four products of a GPT block move on the least of its grids.
pub fn entry(scheme: &dyn TensorScheme) -> String {
    let grids =
        [(4, 1), (4, 2), (8, 2)].map(|(tensor, rows)| Mesh { tensor_rows: rows, ..Mesh::new(tensor, 1, 1) });
    let (tokens, hidden) = (8192, 4096);
    let example = grids.into_iter().find(|mesh| scheme.check(mesh).is_ok()).map(|mesh| {
        let Mesh { tensor, tensor_rows, .. } = mesh;
        let grid = TensorGrid::of(&mesh, Between::Whole, Overlap::Waited);
        let column = |outer| Linear { tokens, inner: hidden, outer, role: Role::Column(Input::Region) };
        let row = |inner| Linear { tokens, inner, outer: hidden, role: Role::Row(Output::Leaves) };
        let layers = [column(3 * hidden), row(hidden), column(4 * hidden), row(4 * hidden)];
        let volumes = layers.map(|layer| scheme.volume(&grid, &layer));
        GridExample {
            tensor,
            tensor_rows,
            tokens,
            hidden,
            forward_elements_received: volumes.iter().map(|volume| volume.forward).sum(),
            backward_elements_received: volumes.iter().map(|volume| volume.backward).sum(),
        }
    });
    print(&TensorSchemeEntry {
        name: scheme.name(),
        summary: scheme.summary(),
        source: scheme.source(),
        gpt_block: example,
    })
}

#[derive(Serialize)]
struct TensorSchemeEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    gpt_block: Option<GridExample>,
}

#[derive(Serialize)]
struct GridExample {
    tensor: usize,
    tensor_rows: usize,
    tokens: usize,
    hidden: usize,
    forward_elements_received: f64,
    backward_elements_received: f64,
}
