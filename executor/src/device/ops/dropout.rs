//! What dropout needs of a device.

use super::super::cuda::Cuda;
use super::super::{AttentionGradient, AttentionTile, Met, Numbers, Slice, SliceMut};
use trainwright_kernels::attention::{Attention, ScoreDropout};
use trainwright_kernels::dropout::Dropout;

/// A device that drops out elements. One that does not is not asked: `Device`'s kind refuses such a plan.
pub(crate) trait DropoutOps {
    /// Multiplies rows by their masks.
    fn drop_out(&self, x: SliceMut, dropout: &Dropout, _width: usize, _places: &[[usize; 2]]) {
        unreachable!("{dropout:?} of {} numbers is refused on this device", x.len());
    }

    /// As `attention`.
    fn attention_dropping(&self, _layer: &Attention, drops: ScoreDropout, _qkv: Slice) -> [Numbers; 2] {
        unreachable!("{drops:?} is refused on this device");
    }

    /// As `attention_gradient`.
    fn attention_gradient_dropping(
        &self,
        _layer: &Attention,
        drops: ScoreDropout,
        _gradient: AttentionGradient,
    ) -> Numbers {
        unreachable!("{drops:?} is refused on this device");
    }

    /// As `attend`.
    fn attend_dropping(&self, _layer: &Attention, drops: ScoreDropout, _tile: AttentionTile) -> [Numbers; 2] {
        unreachable!("{drops:?} is refused on this device");
    }

    /// As `attend_gradient`.
    fn attend_gradient_dropping(
        &self,
        _layer: &Attention,
        drops: ScoreDropout,
        _tile: (AttentionTile, Met),
    ) -> [Numbers; 3] {
        unreachable!("{drops:?} is refused on this device");
    }
}

/// `check_on_cuda` refuses what would ask it.
impl DropoutOps for Cuda {}
