//! The parts of a block as data: the steps of each forward and backward, and what it keeps between them.

use crate::step::{Half, Step, StepWork};
use trainwright_spec::plan::{Piece, Pieces};
use trainwright_spec::program::{Kernel, Module};
use trainwright_spec::units::Bytes;

/// A module of a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// Its name in the program.
    pub module: Module,
    /// What runs from input to output.
    pub forward: Vec<Step>,
    /// What runs from the output's gradient to the input's and the weights'.
    pub backward: Vec<Step>,
    /// What forward keeps for backward.
    pub kept: Bytes,
    /// What of it its forward makes; the rest is its input.
    pub made: Bytes,
    /// The pieces that it belongs to: what it does when one of them is computed again.
    pub again: Vec<Again>,
    /// Elements of its weights that are also kept quantised.
    pub quantised_weights: u64,
}

/// A part's place in a piece that can be computed again by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Again {
    /// Which piece.
    pub piece: Piece,
    /// Whether its forward runs again.
    pub role: Role,
    /// What of its `kept` is not kept then.
    pub dropped: Bytes,
}

/// What a part has to do with a piece. The parts of a piece follow each other, perhaps with others between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The first whose forward runs again.
    First,
    /// Its forward runs again too.
    Runs,
    /// It only reads what those make.
    Reads,
}

impl Part {
    /// Adds it to a piece.
    pub fn join(&mut self, piece: Piece, role: Role, dropped: Bytes) {
        self.again.push(Again { piece, role, dropped });
    }

    /// Its places in the pieces of a recompute choice. The whole feed-forward part contains its activation.
    pub fn chosen(&self, pieces: Pieces) -> impl Iterator<Item = &Again> {
        let within = |piece| self.again.iter().any(|again| again.piece == piece && pieces.contains(piece));
        let contained = within(Piece::Mlp) || within(Piece::Experts);
        let chosen = self.again.iter().filter(move |again| pieces.contains(again.piece));
        chosen.filter(move |again| !(contained && again.piece == Piece::Activation))
    }

    /// The part with its name in the program.
    pub fn named(self, module: Module) -> Self {
        Self { module, ..self }
    }

    /// The steps of one half of backward, in order. A collective that would overlap a kernel of the other half is not
    /// overlapped.
    pub fn backward_half(&self, half: Half) -> Vec<Step> {
        let next_is_here = |index: usize| self.backward.get(index + 1).is_none_or(|next| next.half == half);
        let steps = self.backward.iter().enumerate().filter(|(_, step)| step.half == half);
        steps.map(|(index, step)| step.beside(step.is_beside_next() && next_is_here(index))).collect()
    }

    /// What the second half of backward needs of the first: for each product (inner × rows) · (rows × outer) that makes
    /// a weight's gradient the gradient of its output, rows × outer. `None` if there is no second half; then nothing
    /// that forward kept is needed after the first half. Else it is: a part with products keeps their input.
    pub fn output_gradient(&self) -> Option<Bytes> {
        let size = |step: &Step| match step.work {
            StepWork::Kernel { kernel: Kernel::Gemm { count, n, k, precision, .. }, .. }
                if step.half == Half::Weight =>
            {
                Some(precision.operand_bytes() * (count * n * k) as f64)
            }
            _ => None,
        };
        self.backward.iter().filter_map(size).reduce(|sum, size| sum + size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::precision::Precision;

    #[test]
    fn gradients_of_outputs_wait_for_the_second_half_as_operands() {
        let check = |precision, expected: f64| {
            // Two weights of 3 x 5, of 7 rows each.
            let product = Step::gemm("fc1", 2, [3, 5, 7], precision);
            let backward = vec![Step { half: Half::Weight, ..product }];
            let part = Part { backward, ..Part::default() };
            assert_eq!(part.output_gradient(), Some(Bytes::new(expected)), "{precision:?}");
        };
        check(Precision::Bf16, 2.0 * 2.0 * 5.0 * 7.0);
        check(Precision::Fp8Block, 1.03125 * 2.0 * 5.0 * 7.0);
    }
}
