//! Attention on slices.

use super::super::{
    AttentionGradient, AttentionOps, AttentionOutput, AttentionTile, Numbers, Slice, SliceMut,
};
use super::Cpu;
use trainwright_kernels::attention::{Attention, Kept, Output, ScoreRules, Tile};

fn kept(output: AttentionOutput<'_>) -> Kept<'_, f32> {
    Kept { heads: output.heads.host(), logarithms: output.left.host(), gradient: output.gradient.host() }
}

fn host(tile: AttentionTile<'_>) -> Tile<'_, f32> {
    Tile { queries: tile.queries.host(), keys: tile.keys.host(), values: tile.values.host() }
}

fn numbers(made: Output<f32>) -> [Numbers; 2] {
    [made.heads.into(), made.logarithms.into()]
}

impl AttentionOps for Cpu {
    fn attention(&self, layer: &Attention, rules: ScoreRules, qkv: Slice) -> [Numbers; 2] {
        numbers(layer.forward(rules, qkv.host(), self.threads))
    }

    fn attention_gradient(
        &self,
        layer: &Attention,
        rules: ScoreRules,
        gradient: AttentionGradient,
    ) -> Numbers {
        layer.backward(rules, gradient.qkv.host(), kept(gradient.output), self.threads).into()
    }

    fn attend(&self, layer: &Attention, rules: ScoreRules, tile: AttentionTile) -> [Numbers; 2] {
        numbers(layer.tile_forward(rules, host(tile), self.threads))
    }

    fn attend_gradient(
        &self,
        layer: &Attention,
        rules: ScoreRules,
        tile: AttentionTile,
        output: AttentionOutput,
    ) -> [Numbers; 3] {
        let made = layer.tile_backward(rules, host(tile), kept(output), self.threads);
        [made.queries, made.keys, made.values].map(Numbers::Host)
    }

    fn join(&self, layer: &Attention, outputs: [SliceMut; 2], other: [Slice; 2]) {
        layer.join(outputs.map(SliceMut::host), other.map(Slice::host));
    }
}
