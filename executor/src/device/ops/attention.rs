//! What attention needs of a device, of whole sequences and of parts of them.

use super::super::{Numbers, Slice, SliceMut};
use trainwright_kernels::attention::{Attention, ScoreRules};

/// What backward of attention reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionGradient<'a> {
    /// Rows of queries, keys and values.
    pub qkv: Slice<'a>,
    /// What is known of its queries.
    pub output: AttentionOutput<'a>,
}

/// Forward's results and the output's gradient of queries that have seen all their keys, for backward.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionOutput<'a> {
    /// The heads' outputs.
    pub heads: Slice<'a>,
    /// What forward left.
    pub left: Slice<'a>,
    /// The gradient of the heads' outputs.
    pub gradient: Slice<'a>,
}

/// Queries and keys with their values, in separate rows. A causal mask sees both begin at one position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionTile<'a> {
    pub queries: Slice<'a>,
    pub keys: Slice<'a>,
    pub values: Slice<'a>,
}

/// A device that attends. Outputs have two parts: the heads' outputs, and what the kernel leaves for backward. Backward
/// gets the rules of forward.
pub(crate) trait AttentionOps {
    /// The outputs of packed rows.
    fn attention(&self, layer: &Attention, rules: ScoreRules, qkv: Slice) -> [Numbers; 2];

    /// The gradient of packed rows.
    fn attention_gradient(
        &self,
        layer: &Attention,
        rules: ScoreRules,
        gradient: AttentionGradient,
    ) -> Numbers;

    /// The outputs of a tile's queries over its keys alone.
    fn attend(&self, layer: &Attention, rules: ScoreRules, tile: AttentionTile) -> [Numbers; 2];

    /// The gradients of a tile's queries, keys and values; its queries may have seen other keys too.
    fn attend_gradient(
        &self,
        layer: &Attention,
        rules: ScoreRules,
        tile: AttentionTile,
        output: AttentionOutput,
    ) -> [Numbers; 3];

    /// Puts the outputs of the same queries over other keys together, in the first ones.
    fn join(&self, layer: &Attention, outputs: [SliceMut; 2], other: [Slice; 2]);
}
