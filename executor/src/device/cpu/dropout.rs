//! Dropout on slices.

use super::super::{
    AttentionGradient, AttentionOutput, AttentionTile, DropoutOps, Numbers, Positions, Slice, SliceMut,
};
use super::Cpu;
use super::attention::{host, kept, numbers};
use trainwright_kernels::attention::{Attention, ScoreDropout};
use trainwright_kernels::dropout::Dropout;

impl DropoutOps for Cpu {
    fn drop_out(&self, x: SliceMut, dropout: &Dropout, width: usize, first: usize, positions: Positions) {
        let each = positions.of.iter().cloned().flatten();
        let of_position = |position| (0..positions.batch).map(move |sequence| [first + sequence, position]);
        let places: Vec<[usize; 2]> = each.flat_map(of_position).collect();
        dropout.apply(x.host(), width, &places);
    }

    fn attention_dropping(&self, layer: &Attention, drops: ScoreDropout, qkv: Slice) -> [Numbers; 2] {
        numbers(layer.forward_dropping(Some(drops), qkv.host(), self.threads))
    }

    fn attention_gradient_dropping(
        &self,
        layer: &Attention,
        drops: ScoreDropout,
        gradient: AttentionGradient,
    ) -> Numbers {
        let (qkv, kept) = (gradient.qkv.host(), kept(gradient.output));
        layer.backward_dropping(Some(drops), qkv, kept, self.threads).into()
    }

    fn attend_dropping(&self, layer: &Attention, drops: ScoreDropout, tile: AttentionTile) -> [Numbers; 2] {
        numbers(layer.tile_forward_dropping(Some(drops), host(tile), self.threads))
    }

    fn attend_gradient_dropping(
        &self,
        layer: &Attention,
        drops: ScoreDropout,
        (tile, output): (AttentionTile, AttentionOutput),
    ) -> [Numbers; 3] {
        let made = layer.tile_backward_dropping(Some(drops), host(tile), kept(output), self.threads);
        [made.queries, made.keys, made.values].map(Numbers::Host)
    }
}
