//! What the ends of a model need of a device: tables of vectors by entry and by position, and the loss.

use super::super::{Numbers, Positions, Slice, SliceMut, Words};
use trainwright_kernels::cross_entropy::{self, LossTerms};
use trainwright_kernels::embedding::Rows;

/// What the gradient of the loss reads of the tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossTokens<'a> {
    pub targets: &'a Words,
    /// The three numbers of each token over all columns.
    pub three: Slice<'a>,
    /// The gradient of the step's loss by that of one token.
    pub weight: f32,
    pub terms: LossTerms,
}

/// A device that looks up and judges tokens.
pub(crate) trait TokenOps {
    /// The row of each entry, zeros for one that the table has not.
    fn look_up(&self, rows: Rows, table: Slice, entries: &Words, out: SliceMut);

    /// Adds each row of `gradient` to the row of its entry.
    fn look_up_gradient(&self, rows: Rows, table: SliceMut, entries: &Words, gradient: Slice);

    /// Adds to each row the table's of its position.
    fn add_positions(&self, x: SliceMut, width: usize, table: Slice, positions: Positions);

    /// Adds each row of `gradient` to the table's of its position.
    fn positions_gradient(&self, gradient: Slice, width: usize, table: SliceMut, positions: Positions);

    /// The three numbers of each token's loss: the largest logits of all tokens, their sums, the targets' logits.
    fn loss(
        &self,
        columns: &cross_entropy::Columns,
        logits: Slice,
        targets: &Words,
        terms: &LossTerms,
    ) -> Numbers;

    /// Turns logits into their gradients.
    fn loss_gradient(&self, columns: &cross_entropy::Columns, logits: SliceMut, tokens: LossTokens);
}
