//! What a mixture of experts needs of a device: choices of experts, rows that go to them and back, and their products.

use super::super::{Device, Matrix, Product, Slice, SliceMut};
use std::ops::Range;
use trainwright_kernels::Onto;

/// Rows at places: each place holds one row, and a row may be at several places or at none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Visits {
    /// How many rows there are.
    pub rows: usize,
    /// The most places of a row.
    pub slots: usize,
    /// By place: row · slots + which of the row's places it is.
    pub choices: Vec<u32>,
    /// By those numbers the places, ascending for each row, and `NOWHERE`.
    pub places: Vec<u32>,
}

/// No place.
pub(crate) const NOWHERE: u32 = u32::MAX;

impl Visits {
    /// The visits of `rows` rows: `by_place` has the row of each place.
    pub fn new(rows: usize, by_place: &[usize]) -> Self {
        let mut counts = vec![0; rows];
        by_place.iter().for_each(|row| counts[*row] += 1);
        let slots = counts.iter().copied().max().unwrap_or(0).max(1);
        let mut places = vec![NOWHERE; rows * slots];
        counts.fill(0);
        let choice = |(place, row): (usize, &usize)| {
            let choice = row * slots + counts[*row];
            counts[*row] += 1;
            places[choice] = place as u32;
            choice as u32
        };
        let choices = by_place.iter().enumerate().map(choice).collect();
        Self { rows, slots, choices, places }
    }
}

/// Which product of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertPass {
    /// y = x Wᵀ.
    Forward,
    /// The gradient of x: y′ W.
    Backward,
    /// Adds the gradient of W: y′ᵀ x.
    Weights,
}

/// A product of every expert, each over the rows of its tokens. A matrix W is outputs × inputs; those of all experts lie one behind the
/// other, and so do the rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertProducts<'a> {
    pub pass: ExpertPass,
    /// x in forward, else y′.
    pub left: Slice<'a>,
    /// The matrices; x for their gradient.
    pub right: Slice<'a>,
    /// Where each expert's rows begin, and where the last one's end.
    pub starts: &'a [usize],
    /// Length of a row of x.
    pub inputs: usize,
    /// Length of a row of y.
    pub outputs: usize,
}

impl<'a> ExpertProducts<'a> {
    /// One expert's behind the other's.
    pub fn one_by_one(&self, device: &dyn Device, out: SliceMut) {
        let Self { pass, left, right, starts, inputs, outputs } = *self;
        let rows = |rows: &Range<usize>, width: usize| rows.start * width..rows.end * width;
        let of =
            |all: Slice<'a>, tokens: &Range<usize>, width| Matrix::rows(all.part(rows(tokens, width)), width);
        let used = starts.windows(2).map(|ends| ends[0]..ends[1]).enumerate();
        let used: Vec<_> = used.filter(|(_, rows)| !rows.is_empty()).collect();
        let matrix = |expert: usize| rows(&(expert * outputs..(expert + 1) * outputs), inputs);
        let result = |(expert, tokens): &(usize, Range<usize>)| match pass {
            ExpertPass::Forward => rows(tokens, outputs),
            ExpertPass::Backward => rows(tokens, inputs),
            ExpertPass::Weights => matrix(*expert),
        };
        let results = out.parts(used.iter().map(result));
        for ((expert, tokens), out) in used.iter().zip(results) {
            let [left, right] = match pass {
                ExpertPass::Forward => {
                    [of(left, tokens, inputs), Matrix::rows(right.part(matrix(*expert)), inputs).transposed()]
                }
                ExpertPass::Backward => {
                    [of(left, tokens, outputs), Matrix::rows(right.part(matrix(*expert)), inputs)]
                }
                ExpertPass::Weights => [of(left, tokens, outputs).transposed(), of(right, tokens, inputs)],
            };
            let onto = if pass == ExpertPass::Weights { Onto::Add } else { Onto::Replace };
            device.multiply(out, Product { left, right, onto, bias: None, fp8: None });
        }
    }
}

/// A device that chooses experts, moves rows and multiplies them. Weights are by choice: by row and slot.
pub(crate) trait ExpertOps {
    /// By token the experts with the highest of `count` scores, the first of equals, and the softmax over those scores.
    fn choose(&self, scores: Slice, count: usize, per_token: usize) -> (Vec<u32>, Vec<f32>);

    /// Writes the row of each place, times its weight if there are weights.
    fn gather_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut);

    /// Writes for each row the sum over its places, times their weights if there are weights.
    fn combine_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut);

    /// A product of every expert.
    fn multiply_experts(&self, out: SliceMut, products: ExpertProducts);

    /// By choice the product of a row with what is at its place.
    fn products_with_places(&self, rows: Slice, at_places: Slice, visits: &Visits) -> Vec<f32>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_places_in_their_order() {
        // Row 2 is at places 0 and 3, row 0 at place 1, row 1 at none, row 3 at place 2.
        let visits = Visits::new(4, &[2, 0, 3, 2]);
        assert_eq!(visits.slots, 2);
        assert_eq!(visits.choices, [4, 0, 6, 5]);
        assert_eq!(visits.places, [1, NOWHERE, NOWHERE, NOWHERE, 0, 3, 2, NOWHERE]);
    }
}
