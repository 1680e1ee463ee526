//! Dropout of what a module makes, and of its gradient.

use super::Step;
use crate::dropout::Dropped;
use crate::tensor::Tensor;
use trainwright_kernels::attention::{Attention, ScoreDropout};

/// Drops elements out of rows of tokens as norms and additions see them.
pub(super) fn drop_out(step: &Step, rows: &mut Tensor, dropped: Dropped) {
    let masks = &step.frame.masks;
    let Some(dropout) = masks.of(step.model.drops_out(), step.place.0, dropped) else { return };
    let sequences = masks.first_sequence..masks.first_sequence + step.sizes.batch;
    let positions = step.sizes.norm_positions();
    let places: Vec<[usize; 2]> =
        positions.flat_map(|position| sequences.clone().map(move |sequence| [sequence, position])).collect();
    let width = rows.width();
    step.device.drop_out(rows.slice_mut(), &dropout, width, &places);
}

/// What is dropped of the probabilities of a rank's heads over whole sequences.
pub(super) fn of_probabilities(step: &Step, layer: &Attention) -> Option<ScoreDropout> {
    let masks = &step.frame.masks;
    let dropout = masks.of(step.model.drops_out(), step.place.0, Dropped::Probabilities)?;
    Some(ScoreDropout { dropout, first: [masks.first_sequence, step.sizes.column() * layer.heads, 0, 0] })
}
