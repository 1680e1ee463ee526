//! Attention of packed rows, and of rows that came apart.

use super::super::{AttentionGradient, AttentionOps, AttentionTile, Met, Numbers, Slice, SliceMut};
use super::structs::{attention_between, attention_of, int, parts};
use super::{Address, Cuda};
use trainwright_kernels::attention::Attention;
use trainwright_kernels::cuda::attention::{self, Join};

impl Cuda {
    /// Where everything but the outputs is.
    fn tile_of(layer: &Attention, tile: AttentionTile) -> attention::Attention {
        let rows = layer.columns();
        let positions = |slice: Slice, row: usize| slice.len() / row / layer.batch;
        let met = [positions(tile.queries, rows[0]), positions(tile.keys, rows[1])];
        let [q, k, v] = [tile.queries, tile.keys, tile.values].map(|slice| slice.device().at);
        attention::Attention { q, k, v, ..attention_between(layer, rows, met) }
    }

    fn forward(&self, layer: &Attention, own: attention::Attention) -> [Numbers; 2] {
        let tokens = own.queries as usize * layer.batch;
        let heads = self.far(tokens * layer.output_row(), self.number);
        let (logarithms, at) = self.scratch(tokens * layer.heads);
        let own = attention::Attention { o: heads.at, logarithms: at, ..own };
        self.launch(own.forward(self.number).last().expect("the simple version does all"));
        [Numbers::far(heads), logarithms]
    }

    fn backward(&self, own: attention::Attention, met: Met, gradients: [Address; 3]) {
        let (_dots, dots) = self.scratch(met.left.len());
        let [q_gradient, k_gradient, v_gradient] = gradients;
        let own = attention::Attention {
            o: met.heads.device().at,
            logarithms: met.left.device().at,
            o_gradient: met.gradient.device().at,
            dots,
            q_gradient,
            k_gradient,
            v_gradient,
            ..own
        };
        let fastest = own.backward(self.number).pop().expect("the simple version does all");
        fastest.iter().for_each(|launch| self.launch(launch));
    }
}

impl AttentionOps for Cuda {
    fn attention(&self, layer: &Attention, qkv: Slice) -> [Numbers; 2] {
        self.forward(layer, attention_of(layer, qkv.device()))
    }

    fn attention_gradient(&self, layer: &Attention, gradient: AttentionGradient) -> Numbers {
        let AttentionGradient { qkv, met } = gradient;
        let to_qkv = self.far(qkv.len(), self.number);
        self.backward(attention_of(layer, qkv.device()), met, parts(layer, to_qkv));
        Numbers::far(to_qkv)
    }

    fn attend(&self, layer: &Attention, tile: AttentionTile) -> [Numbers; 2] {
        self.forward(layer, Self::tile_of(layer, tile))
    }

    fn attend_gradient(&self, layer: &Attention, tile: AttentionTile, met: Met) -> [Numbers; 3] {
        let made = [tile.queries, tile.keys, tile.values].map(|slice| self.far(slice.len(), self.number));
        self.backward(Self::tile_of(layer, tile), met, made.map(|far| far.at));
        made.map(Numbers::far)
    }

    fn join(&self, layer: &Attention, [heads, logarithms]: [SliceMut; 2], other: [Slice; 2]) {
        let (heads, logarithms) = (heads.device(), logarithms.device());
        let [other, other_logarithms] = other.map(|slice| slice.device().at);
        let own = Join {
            o: heads.at,
            logarithms: logarithms.at,
            other,
            other_logarithms,
            o_row: layer.output_row() as i64,
            batch: int(layer.batch),
            heads: int(layer.heads),
            queries: int(logarithms.length / layer.batch / layer.heads),
            value_head_dim: int(layer.value_head_dim),
        };
        self.launch(&own.launch(heads.number));
    }
}
