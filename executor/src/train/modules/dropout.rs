//! Dropout of what a module makes, and of its gradient.

use super::operator::Step;
use crate::device::Positions;
use crate::device::tensor::Tensor;
use crate::train::masks::Dropped;
use trainwright_kernels::attention::{Attention, ScoreDropout};

/// Drops elements out of rows of tokens as norms and additions see them.
pub(super) fn drop_out(step: &Step, rows: &mut Tensor, dropped: Dropped) {
    let masks = &step.frame.masks;
    let Some(dropout) = masks.of(step.model.drops_out(), step.place.0, dropped) else { return };
    let (width, first) = (rows.width(), masks.first_sequence);
    let positions = Positions { of: &step.sizes.norm_ranges(), batch: step.sizes.batch, documents: None };
    step.device.drop_out(rows.slice_mut(), &dropout, width, first, positions);
}

/// What is dropped of the probabilities of a rank's heads over whole sequences.
pub(super) fn of_probabilities(step: &Step, layer: &Attention) -> Option<ScoreDropout> {
    let masks = &step.frame.masks;
    let dropout = masks.of(step.model.drops_out(), step.place.0, Dropped::Probabilities)?;
    Some(ScoreDropout { dropout, first: [masks.first_sequence, step.sizes.column() * layer.heads, 0, 0] })
}
