//! Tables of vectors by entry and by position, and the loss.

use super::super::{
    Device, LossTokens, Numbers, Positions, Slice, SliceMut, SortedOnDevice, TokenOps, Words,
};
use super::Cuda;
use super::structs::{cross_entropy_of, int};
use trainwright_kernels::cross_entropy::{self, LossTerms};
use trainwright_kernels::cuda::cross_entropy::CrossEntropy;
use trainwright_kernels::cuda::embedding::{LookUp, TableGradient};
use trainwright_kernels::embedding::Rows;

impl TokenOps for Cuda {
    fn look_up(&self, rows: Rows, table: Slice, entries: &Words, out: SliceMut) {
        let table = table.device();
        let kernel = LookUp {
            table: table.at,
            entries: entries.device(),
            out: out.device().at,
            tokens: int(entries.len()),
            width: int(rows.width),
            first: int(rows.first),
            rows: int(table.length / rows.width),
            batch: 1,
            ..LookUp::default()
        };
        self.launch(&kernel.launch(table.number, self.gpu));
    }

    fn look_up_gradient(&self, rows: Rows, table: SliceMut, entries: &Words, gradient: Slice) {
        let (table, gradient) = (table.device(), gradient.device());
        let SortedOnDevice { order, starts, rows: of_table } = entries.sorted();
        assert_eq!(of_table, table.length / rows.width, "tokens were sorted for this table");
        let kernel = TableGradient {
            gradient: gradient.at,
            entries: entries.device(),
            order,
            starts,
            table: table.at,
            tokens: int(entries.len()),
            width: int(rows.width),
            first: int(rows.first),
            rows: int(of_table),
        };
        self.launch(&kernel.launch(gradient.number, self.gpu));
    }

    /// Positions are looked up as entries of their table.
    fn add_positions(&self, x: SliceMut, width: usize, table: Slice, positions: Positions) {
        let (x, table) = (x.device(), table.device());
        let entries = self.tables.borrow_mut().positions(self, positions);
        let (tokens, rows) = (x.length / width, table.length / width);
        let looked_up = self.any(x.length, x.number);
        let kernel = LookUp {
            table: table.at,
            entries,
            out: looked_up.slice().device().at,
            tokens: int(tokens),
            width: int(width),
            rows: int(rows),
            batch: 1,
            ..LookUp::default()
        };
        self.launch(&kernel.launch(table.number, self.gpu));
        self.residual(x, [None, Some(looked_up.slice())], width);
    }

    /// Tokens are sorted by their positions as they are.
    fn positions_gradient(&self, gradient: Slice, width: usize, table: SliceMut, positions: Positions) {
        let (gradient, table) = (gradient.device(), table.device());
        let (tokens, rows) = (gradient.length / width, table.length / width);
        let mut tables = self.tables.borrow_mut();
        let entries = tables.positions(self, positions);
        let [order, starts] = tables.sorted_positions(self, positions, rows);
        let kernel = TableGradient {
            gradient: gradient.at,
            entries,
            order,
            starts,
            table: table.at,
            tokens: int(tokens),
            width: int(width),
            first: 0,
            rows: int(rows),
        };
        self.launch(&kernel.launch(gradient.number, self.gpu));
    }

    fn loss(
        &self,
        columns: &cross_entropy::Columns,
        logits: Slice,
        targets: &Words,
        terms: &LossTerms,
    ) -> Numbers {
        let is_plain = terms.label_smoothing == 0.0 && terms.z_loss == 0.0;
        assert!(is_plain, "a run with other terms of the loss is refused on GPUs");
        let (logits, tokens, targets) = (logits.device(), targets.len(), targets.device());
        let (three, at) = self.scratch(3 * tokens);
        let [maximum, sum, target] = [0, 1, 2].map(|place| at.after(4 * place * tokens));
        let kernel =
            CrossEntropy { targets, maximum, sum, target, ..cross_entropy_of(columns, logits, tokens) };
        let fastest = kernel.statistics(logits.number).pop().expect("the simple version does all");
        self.launch(&fastest);
        three
    }

    fn loss_gradient(&self, columns: &cross_entropy::Columns, logits: SliceMut, tokens: LossTokens) {
        let LossTokens { targets, three, weight, .. } = tokens;
        let (logits, count, at) = (logits.device(), targets.len(), three.device().at);
        let targets = targets.device();
        let kernel = CrossEntropy {
            targets,
            maximum: at,
            sum: at.after(4 * count),
            scale: weight,
            ..cross_entropy_of(columns, logits, count)
        };
        let fastest = kernel.gradient(logits.number).pop().expect("the simple version does all");
        self.launch(&fastest);
    }
}
