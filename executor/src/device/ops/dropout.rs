//! What dropout needs of a device.

use super::super::{Positions, SliceMut};
use trainwright_kernels::dropout::Dropout;

/// A device that drops out elements.
pub(crate) trait DropoutOps {
    /// Multiplies rows of tokens by their masks; `first` is the first sequence.
    fn drop_out(&self, x: SliceMut, dropout: &Dropout, width: usize, first: usize, positions: Positions);
}
