//! What dropout needs of a device.

use super::super::{AttentionGradient, AttentionOutput, AttentionTile, Numbers, Positions, Slice, SliceMut};
use trainwright_kernels::attention::{Attention, ScoreDropout};
use trainwright_kernels::dropout::Dropout;

/// A device that drops out elements.
pub(crate) trait DropoutOps {
    /// Multiplies rows of tokens by their masks; `first` is the first sequence.
    fn drop_out(&self, x: SliceMut, dropout: &Dropout, width: usize, first: usize, positions: Positions);

    /// As `attention`.
    fn attention_dropping(&self, layer: &Attention, drops: ScoreDropout, qkv: Slice) -> [Numbers; 2];

    /// As `attention_gradient`.
    fn attention_gradient_dropping(
        &self,
        layer: &Attention,
        drops: ScoreDropout,
        gradient: AttentionGradient,
    ) -> Numbers;

    /// As `attend`.
    fn attend_dropping(&self, layer: &Attention, drops: ScoreDropout, tile: AttentionTile) -> [Numbers; 2];

    /// As `attend_gradient`.
    fn attend_gradient_dropping(
        &self,
        layer: &Attention,
        drops: ScoreDropout,
        tile: (AttentionTile, AttentionOutput),
    ) -> [Numbers; 3];
}
