//! Dropout on slices.

use super::super::{DropoutOps, Positions, SliceMut};
use super::Cpu;
use trainwright_kernels::dropout::Dropout;

impl DropoutOps for Cpu {
    fn drop_out(&self, x: SliceMut, dropout: &Dropout, width: usize, first: usize, positions: Positions) {
        let each = positions.of.iter().cloned().flatten();
        let of_position = |position| (0..positions.batch).map(move |sequence| [first + sequence, position]);
        let places: Vec<[usize; 2]> = each.flat_map(of_position).collect();
        dropout.apply(x.host(), width, &places);
    }
}
