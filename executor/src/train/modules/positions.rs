//! The addition of a learned vector for each position.

use super::dropout::drop_out;
use super::operator::{Operator, Step};
use crate::device;
use crate::device::tensor::Tensor;
use crate::train::data::documents::PackedDocuments;
use crate::train::masks::Dropped;
use crate::train::parameters::ParameterName;

pub(super) struct Positions;

impl Operator for Positions {
    fn reads_input(&self) -> bool {
        false
    }

    fn forward(&self, step: &mut Step, mut input: Tensor) -> Tensor {
        let table = step.read(ParameterName::PositionEmbedding).expect("learned positions have a table");
        let (width, of) = (input.width(), step.sizes.norm_ranges());
        let documents = step.frame.documents.as_deref().map(PackedDocuments::view);
        let positions = device::Positions { of: &of, batch: step.sizes.batch, documents };
        step.device.add_positions(input.slice_mut(), width, table, positions);
        drop_out(step, &mut input, Dropped::Embedding);
        input
    }

    fn backward(&self, step: &mut Step, mut gradient: Tensor) -> Option<Tensor> {
        drop_out(step, &mut gradient, Dropped::Embedding);
        let of = step.sizes.norm_ranges();
        let documents = step.frame.documents.as_deref().map(PackedDocuments::view);
        let positions = device::Positions { of: &of, batch: step.sizes.batch, documents };
        let layer = step.state.layer_mut(step.place.0);
        let table = layer.write(step.device, ParameterName::PositionEmbedding);
        let table = table.expect("learned positions have a table");
        step.device.positions_gradient(gradient.slice(), gradient.width(), table, positions);
        Some(gradient)
    }
}
