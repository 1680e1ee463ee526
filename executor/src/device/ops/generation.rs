//! What generating tokens needs of a device. Only processors do: plans on others are refused before they generate.

use super::super::{Slice, SliceMut};
use trainwright_kernels::attention::{Attention, KeyValueCache};
use trainwright_kernels::packed::WeightRows;

/// A device that generates tokens.
pub(crate) trait GenerationOps {
    /// x · weightᵀ + bias for rows of x as wide as those of the weight.
    fn multiply_rows(&self, _out: SliceMut, _x: Slice, _width: usize, weight: WeightRows, _: Option<Slice>) {
        unreachable!("a product with {} numbers on a device that does not generate", weight.len());
    }

    /// The heads' outputs of new tokens of a sequence, whose keys and values join the cache. With a window each sees that many
    /// tokens at most.
    fn attention_cached(
        &self,
        layer: &Attention,
        _qkv: Slice,
        _cache: &mut KeyValueCache<f32>,
        _window: Option<usize>,
    ) -> Vec<f32> {
        unreachable!("{layer:?} with a cache on a device that does not generate");
    }
}
