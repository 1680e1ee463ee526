//! Generation on slices.

use super::super::{GenerationOps, Slice, SliceMut};
use super::Cpu;
use trainwright_kernels::attention::{Attention, KeyValueCache};
use trainwright_kernels::packed::WeightRows;

impl GenerationOps for Cpu {
    fn multiply_rows(&self, out: SliceMut, x: Slice, width: usize, weight: WeightRows, bias: Option<Slice>) {
        weight.multiply(out.host(), x.host(), width, bias.map(Slice::host), self.threads);
    }

    fn attention_cached(
        &self,
        layer: &Attention,
        qkv: Slice,
        cache: &mut KeyValueCache<f32>,
        window: Option<usize>,
    ) -> Vec<f32> {
        layer.forward_cached(qkv.host(), cache, window, self.threads)
    }
}
