//! Attention of some queries to some keys, and how to join such parts.
//!
//! Parts over other keys have outputs O₁, O₂ and logarithms L₁, L₂; together L = ln(e^L₁ + e^L₂) and
//! O = e^(L₁ − L) O₁ + e^(L₂ − L) O₂. With the joined L, O and ∂O, backward runs on each part separately.
//! Source: Liu et al. 2023, arXiv 2310.01889; Dao 2023, arXiv 2307.08691.

use super::{Attention, Head, Kept, Output, Place, ScoreRules, backward};
use crate::lanes::wide;
use crate::real::Real;
use crate::threads::Threads;

/// Queries, keys and values in separate rows, ordered as those of `Attention`. A causal mask sees both begin at one
/// position.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a, T> {
    /// Rows of all query heads.
    pub queries: &'a [T],
    /// Rows of all key heads.
    pub keys: &'a [T],
    /// Rows of all value heads.
    pub values: &'a [T],
}

/// The gradients of a tile's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TileGradients<T> {
    /// Of its queries.
    pub queries: Vec<T>,
    /// Of its keys.
    pub keys: Vec<T>,
    /// Of its values.
    pub values: Vec<T>,
}

impl Attention {
    /// The outputs of a tile's queries over its keys; `rules` as in `forward`.
    pub fn tile_forward<T: Real>(&self, rules: ScoreRules, tile: Tile<T>, threads: Threads) -> Output<T> {
        let positions = tile.queries.len() / self.columns()[0] / self.batch;
        self.each_head(rules, positions, threads, |sequence, head| self.tile_head(&tile, sequence, head))
    }

    /// The gradients of a tile; `kept` is of its queries over all keys, `rules` as in forward.
    pub fn tile_backward<T: Real>(
        &self,
        rules: ScoreRules,
        tile: Tile<T>,
        kept: Kept<T>,
        threads: Threads,
    ) -> TileGradients<T> {
        let [query_row, key_row, value_row] = self.columns();
        let positions = tile.queries.len() / query_row / self.batch;
        let (d, e) = (self.head_dim, self.value_head_dim);
        let shared = self.heads / self.kv_heads;
        let made = threads.each(self.batch * self.kv_heads, |task| {
            let (sequence, kv_head) = (task / self.kv_heads, task % self.kv_heads);
            let query_heads = (kv_head * shared..(kv_head + 1) * shared).map(|head| {
                let place = Place { sequence, row: self.output_row(), first: head * e };
                let rows = (sequence * self.heads + head) * positions..;
                backward::Query {
                    head,
                    queries: self.take(tile.queries, Place { sequence, row: query_row, first: head * d }, d),
                    output: self.take(kept.heads, place, e),
                    gradient: self.take(kept.gradient, place, e),
                    logarithms: &kept.logarithms[rows][..positions],
                    rules: rules.of(sequence, head),
                }
            });
            self.one_backward(&self.tile_head(&tile, sequence, kv_head * shared), query_heads)
        });
        let zeros = |like: &[T]| vec![T::ZERO; like.len()];
        let mut gradients = TileGradients {
            queries: zeros(tile.queries),
            keys: zeros(tile.keys),
            values: zeros(tile.values),
        };
        for (task, made) in made.into_iter().enumerate() {
            let (sequence, kv_head) = (task / self.kv_heads, task % self.kv_heads);
            for (head, gradient) in &made.queries {
                let place = Place { sequence, row: query_row, first: head * d };
                self.put(&mut gradients.queries, place, gradient, d);
            }
            let place = Place { sequence, row: key_row, first: kv_head * d };
            self.put(&mut gradients.keys, place, &made.keys, d);
            let place = Place { sequence, row: value_row, first: kv_head * e };
            self.put(&mut gradients.values, place, &made.values, e);
        }
        gradients
    }

    /// Adds the outputs and L of the same queries over other keys to the first ones.
    pub fn join<T: Real>(
        &self,
        [heads, logarithms]: [&mut [T]; 2],
        [other_heads, other_logarithms]: [&[T]; 2],
    ) {
        let positions = logarithms.len() / (self.batch * self.heads);
        let e = self.value_head_dim;
        wide(|| {
            let pairs = logarithms.iter_mut().zip(other_logarithms);
            for (at, (logarithm, added)) in pairs.enumerate() {
                let (task, position) = (at / positions, at % positions);
                let (sequence, head) = (task / self.heads, task % self.heads);
                let largest = logarithm.larger(*added);
                if largest == T::LEAST {
                    // The query sees no key of either part.
                    continue;
                }
                let [one, two] = [*logarithm, *added].map(|part| (part - largest).exp());
                let sum = one + two;
                *logarithm = largest + T::of(sum.wide().ln());
                let first = (position * self.batch + sequence) * self.output_row() + head * e;
                let rows = heads[first..first + e].iter_mut().zip(&other_heads[first..first + e]);
                rows.for_each(|(head, other)| *head = (*head * one + *other * two) / sum);
            }
        });
    }

    fn tile_head<T: Real>(&self, tile: &Tile<T>, sequence: usize, head: usize) -> Head<'static, T> {
        let rows = self.columns();
        let (d, e) = (self.head_dim, self.value_head_dim);
        let kv_head = head / (self.heads / self.kv_heads);
        let place = |which: usize, first| Place { sequence, row: rows[which], first };
        Head {
            queries: self.take(tile.queries, place(0, head * d), d),
            keys: self.take(tile.keys, place(1, kv_head * d), d),
            values: self.take(tile.values, place(2, kv_head * e), e),
            rules: ScoreRules::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Documents, Mask, ScoreDropout};
    use super::*;
    use crate::dropout::Dropout;

    #[test]
    fn tiles_together_are_the_whole() {
        let dropout = Some(ScoreDropout { dropout: Dropout { rate: 0.3, key: 5 }, first: [4, 8, 0, 0] });
        // Documents of 3, 5 and 4 tokens, and of 6 and 6: the queries from 8 and from 6 on see none of the first 5 keys.
        let bounds: Vec<[u32; 2]> = [(3, [0, 3]), (5, [3, 8]), (4, [8, 12]), (6, [0, 6]), (6, [6, 12])]
            .into_iter()
            .flat_map(|(count, bounds)| vec![bounds; count])
            .collect();
        let documents = Some(Documents { bounds: &bounds, positions: 12, first: [0, 0] });
        for dropout in [None, dropout] {
            check(ScoreRules { dropout, documents: None });
            check(ScoreRules { dropout, documents });
        }
    }

    fn check(rules: ScoreRules) {
        // 2 sequences of 12 tokens, 4 query heads for 2 key heads; queries and keys in two chunks of 5 and 7.
        let attention =
            Attention { batch: 2, heads: 4, kv_heads: 2, head_dim: 3, value_head_dim: 2, mask: Mask::Causal };
        let numbers = |count: usize, seed: f64| -> Vec<f64> {
            (0..count).map(|at| (seed + 1.7 * at as f64).sin()).collect()
        };
        let rows = 24;
        let [q, k, v] = attention.columns();
        let parts = [numbers(rows * q, 0.1), numbers(rows * k, 0.2), numbers(rows * v, 0.3)];
        let qkv: Vec<f64> = (0..rows)
            .flat_map(|row| {
                [(0, q), (1, k), (2, v)]
                    .into_iter()
                    .flat_map(move |(part, width)| (0..width).map(move |at| (part, row * width + at)))
            })
            .map(|(part, at)| parts[part][at])
            .collect();
        let expected = attention.forward(rules, &qkv, Threads::ONE);
        let gradient = numbers(rows * attention.output_row(), 0.7);
        let kept = Kept { heads: &expected.heads, logarithms: &expected.logarithms, gradient: &gradient };
        let back = attention.backward(rules, &qkv, kept, Threads::ONE);
        let full = Attention { mask: Mask::Full, ..attention };
        let cut = |part: usize, width: usize, from: usize, to: usize| {
            &parts[part][from * 2 * width..to * 2 * width]
        };
        let tile = |queries: [usize; 2], keys: [usize; 2]| Tile {
            queries: cut(0, q, queries[0], queries[1]),
            keys: cut(1, k, keys[0], keys[1]),
            values: cut(2, v, keys[0], keys[1]),
        };
        let (first, second) = ([0, 5], [5, 12]);
        let close = |made: &[f64], other: &[f64]| {
            assert_eq!(made.len(), other.len());
            made.iter().zip(other).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{a} {b}"));
        };
        let of = |keys: [usize; 2]| {
            let first = [second[0], keys[0]];
            let dropout =
                rules.dropout.map(|dropout| ScoreDropout { first: [4, 8, first[0], first[1]], ..dropout });
            ScoreRules {
                dropout,
                documents: rules.documents.map(|documents| Documents { first, ..documents }),
            }
        };
        let mut late = attention.tile_forward(of(second), tile(second, second), Threads::ONE);
        let early = full.tile_forward(of(first), tile(second, first), Threads::ONE);
        let Output { heads, logarithms } = &mut late;
        full.join([heads, logarithms], [&early.heads, &early.logarithms]);
        close(&late.heads, &expected.heads[10 * attention.output_row()..]);
        let kept = Kept {
            heads: &late.heads,
            logarithms: &late.logarithms,
            gradient: &gradient[10 * attention.output_row()..],
        };
        let of_late_keys = attention.tile_backward(of(second), tile(second, second), kept, Threads::ONE);
        let before = full.tile_backward(of(first), tile(second, first), kept, Threads::ONE);
        let sums: Vec<f64> = of_late_keys.queries.iter().zip(&before.queries).map(|(a, b)| a + b).collect();
        let column = |from: usize, width: usize| -> Vec<f64> {
            let rows = back.chunks_exact(attention.row()).skip(10);
            rows.flat_map(|row| row[from..from + width].to_vec()).collect()
        };
        close(&sums, &column(0, q));
        close(&of_late_keys.keys, &column(q, k));
        close(&of_late_keys.values, &column(q + k, v));
    }
}
