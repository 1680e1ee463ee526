//! One head forward.

use super::{Attention, Head, KEY_TILE, QUERY_TILE};
use crate::lanes::{max, sum, wide};
use crate::matmul::{Matrix, Onto, multiply, multiply_into};
use crate::real::Real;
use crate::threads::Threads;
use std::ops::Range;

impl Attention {
    /// The output and L.
    pub(super) fn one_forward<T: Real>(&self, head: &Head<'_, T>) -> (Vec<T>, Vec<T>) {
        let (d, e) = (self.head_dim, self.value_head_dim);
        let (queries, keys) = (head.queries.len() / d, head.keys.len() / d);
        let mut output = vec![T::ZERO; queries * e];
        let mut logarithms = vec![T::ZERO; queries];
        let mut scores = [T::ZERO; QUERY_TILE * KEY_TILE];
        for first in (0..queries).step_by(QUERY_TILE) {
            let rows = QUERY_TILE.min(queries - first);
            let tile_queries = Matrix::rows(&head.queries[first * d..(first + rows) * d], d);
            let output = &mut output[first * e..(first + rows) * e];
            let mut maxima = [T::LEAST; QUERY_TILE];
            let mut sums = [T::ZERO; QUERY_TILE];
            for first_key in self.key_tiles(&head.rules, first, rows, keys) {
                let columns = KEY_TILE.min(keys - first_key);
                let tile_keys = &head.keys[first_key * d..(first_key + columns) * d];
                let values = &head.values[first_key * e..(first_key + columns) * e];
                let tile = &mut scores[..rows * columns];
                multiply(
                    tile,
                    Onto::Replace,
                    tile_queries,
                    Matrix::rows(tile_keys, d).transposed(),
                    Threads::ONE,
                );
                wide(|| {
                    for (row, scores) in tile.chunks_exact_mut(columns).enumerate() {
                        let seen = self.seen(&head.rules, first + row, first_key, columns);
                        let factor = add_to_softmax(
                            scores,
                            seen.clone(),
                            self.scale(),
                            &mut maxima[row],
                            &mut sums[row],
                        );
                        if let Some(drops) = &head.rules.dropout {
                            let factors = drops.factors::<T>(first + row, first_key + seen.start);
                            let seen = scores[seen].iter_mut().enumerate();
                            seen.for_each(|(column, score)| *score *= factors(column));
                        }
                        if factor != T::ONE {
                            output[row * e..(row + 1) * e].iter_mut().for_each(|o| *o *= factor);
                        }
                    }
                });
                let tile = Matrix::rows(tile, columns);
                multiply_into(output, e, Onto::Add, tile, Matrix::rows(values, e), Threads::ONE);
            }
            wide(|| {
                for row in 0..rows {
                    // A query that sees none of these keys adds nothing where parts are joined.
                    if sums[row] == T::ZERO {
                        logarithms[first + row] = T::LEAST;
                        continue;
                    }
                    let inverse = T::ONE / sums[row];
                    output[row * e..(row + 1) * e].iter_mut().for_each(|o| *o *= inverse);
                    logarithms[first + row] = maxima[row] + T::of(sums[row].wide().ln());
                }
            });
        }
        (output, logarithms)
    }
}

/// Turns a row's scores into exponentials relative to the largest so far, zero for those not seen; returns what earlier
/// results must be multiplied by.
#[inline(always)]
fn add_to_softmax<T: Real>(
    scores: &mut [T],
    seen: Range<usize>,
    scale: T,
    maximum: &mut T,
    total: &mut T,
) -> T {
    scores[..seen.start].fill(T::ZERO);
    scores[seen.end..].fill(T::ZERO);
    let visible = &mut scores[seen];
    if visible.is_empty() {
        return T::ONE;
    }
    let before = *maximum;
    let largest = (max(visible) * scale).larger(before);
    visible.iter_mut().for_each(|s| *s = (*s * scale - largest).exp());
    let factor = if before == T::LEAST { T::ZERO } else { (before - largest).exp() };
    *total = *total * factor + sum(visible, |p| p);
    *maximum = largest;
    factor
}
