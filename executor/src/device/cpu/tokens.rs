//! Tables of vectors and the loss on slices.

use super::super::{LossTokens, Numbers, Positions, Slice, SliceMut, TokenOps, Words, each_token};
use super::Cpu;
use trainwright_kernels::cross_entropy::{self, LossTerms, Statistics};
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
        for (row, position) in x.host().chunks_exact_mut(width).zip(positions.by_row()) {
            elementwise::add(row, &table[position * width..(position + 1) * width]);
        }
    }

    fn positions_gradient(&self, gradient: Slice, width: usize, table: SliceMut, positions: Positions) {
        let table = table.host();
        for (row, position) in gradient.host().chunks_exact(width).zip(positions.by_row()) {
            elementwise::add(&mut table[position * width..(position + 1) * width], row);
        }
    }

    fn loss(
        &self,
        columns: &cross_entropy::Columns,
        logits: Slice,
        targets: &Words,
        terms: &LossTerms,
    ) -> Numbers {
        let each = columns.statistics(logits.host(), targets.host(), terms, self.threads);
        let all = |of: fn(&Statistics<f32>) -> f32| each.iter().map(of);
        let three = all(|token| token.maximum).chain(all(|token| token.sum)).chain(all(|token| token.target));
        Numbers::Host(three.collect())
    }

    fn loss_gradient(&self, columns: &cross_entropy::Columns, logits: SliceMut, tokens: LossTokens) {
        let LossTokens { targets, three, weight, terms } = tokens;
        let of_all: Vec<_> = each_token(three.host()).collect();
        columns.gradient(logits.host(), (targets.host(), &of_all), &terms, weight, self.threads);
    }
}
