//! Tables of vectors and the loss on slices.

use super::super::{LossTokens, Numbers, Positions, Slice, SliceMut, TokenOps, Words, each_token};
use super::Cpu;
use trainwright_kernels::cross_entropy::{self, Statistics};
use trainwright_kernels::elementwise;
use trainwright_kernels::embedding::Rows;

impl TokenOps for Cpu {
    fn look_up(&self, rows: Rows, table: Slice, entries: &Words, out: SliceMut) {
        rows.look_up(table.host(), entries.host(), out.host());
    }

    fn look_up_gradient(&self, rows: Rows, table: SliceMut, entries: &Words, gradient: Slice) {
        rows.add(table.host(), entries.host(), gradient.host());
    }

    fn add_positions(&self, x: SliceMut, width: usize, table: Slice, positions: Positions) {
        let table = table.host();
        let rows = x.host().chunks_exact_mut(positions.batch * width);
        for (rows, position) in rows.zip(positions.of.iter().cloned().flatten()) {
            elementwise::add_bias(rows, &table[position * width..(position + 1) * width]);
        }
    }

    fn positions_gradient(&self, gradient: Slice, width: usize, table: SliceMut, positions: Positions) {
        let table = table.host();
        let rows = gradient.host().chunks_exact(positions.batch * width);
        for (rows, position) in rows.zip(positions.of.iter().cloned().flatten()) {
            elementwise::bias_gradient(rows, &mut table[position * width..(position + 1) * width]);
        }
    }

    fn loss(&self, columns: &cross_entropy::Columns, logits: Slice, targets: &Words) -> Numbers {
        let each = columns.statistics(logits.host(), targets.host(), self.threads);
        let all = |of: fn(&Statistics<f32>) -> f32| each.iter().map(of);
        let three = all(|token| token.maximum).chain(all(|token| token.sum)).chain(all(|token| token.target));
        Numbers::Host(three.collect())
    }

    fn loss_gradient(&self, columns: &cross_entropy::Columns, logits: SliceMut, tokens: LossTokens) {
        let LossTokens { targets, three, weight } = tokens;
        let of_all: Vec<_> = each_token(three.host()).collect();
        columns.gradient(logits.host(), targets.host(), &of_all, weight, self.threads);
    }
}
