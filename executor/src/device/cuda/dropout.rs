//! Dropout: the masks of the CPU, made by the kernels.

use super::super::{
    AttentionGradient, AttentionOutput, AttentionTile, DropoutOps, Numbers, Positions, Slice, SliceMut,
};
use super::Cuda;
use super::attention::Gradients;
use super::structs::{attention_of, int};
use trainwright_kernels::attention::{Attention, ScoreDropout};
use trainwright_kernels::cuda::attention;
use trainwright_kernels::cuda::dropout::{DropOut, Drops};
use trainwright_kernels::dropout::Dropout;

/// An attention of which probabilities are dropped.
fn dropping(operands: attention::Attention, drops: ScoreDropout) -> attention::Attention {
    attention::Attention { drops: Drops::of(&drops.dropout, drops.first), ..operands }
}

impl DropoutOps for Cuda {
    fn drop_out(&self, x: SliceMut, dropout: &Dropout, width: usize, first: usize, positions: Positions) {
        let x = x.device();
        let kernel = DropOut {
            x: x.at,
            positions: self.tables.borrow_mut().positions(self, positions),
            drops: Drops::of(dropout, [first, 0, 0, 0]),
            rows: int(x.length / width),
            width: int(width),
            batch: int(positions.batch),
        };
        self.launch(&kernel.launch(x.number, self.gpu));
    }

    fn attention_dropping(&self, layer: &Attention, drops: ScoreDropout, qkv: Slice) -> [Numbers; 2] {
        self.forward(layer, dropping(attention_of(layer, qkv.device()), drops))
    }

    fn attention_gradient_dropping(
        &self,
        layer: &Attention,
        drops: ScoreDropout,
        gradient: AttentionGradient,
    ) -> Numbers {
        let AttentionGradient { qkv, output } = gradient;
        let to_qkv = self.allocate(qkv.len(), self.number);
        self.backward(
            dropping(attention_of(layer, qkv.device()), drops),
            output,
            Gradients::packed(layer, to_qkv),
        );
        Numbers::on_device(to_qkv)
    }

    fn attend_dropping(&self, layer: &Attention, drops: ScoreDropout, tile: AttentionTile) -> [Numbers; 2] {
        self.forward(layer, dropping(Self::tile_of(layer, tile), drops))
    }

    fn attend_gradient_dropping(
        &self,
        layer: &Attention,
        drops: ScoreDropout,
        (tile, output): (AttentionTile, AttentionOutput),
    ) -> [Numbers; 3] {
        let made =
            [tile.queries, tile.keys, tile.values].map(|slice| self.allocate(slice.len(), self.number));
        self.backward(dropping(Self::tile_of(layer, tile), drops), output, Gradients::apart(layer, made));
        made.map(Numbers::on_device)
    }
}
