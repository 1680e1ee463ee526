//! One key and value head backward, with the query heads that share it.

use super::{Attention, Head, KEY_TILE, QUERY_TILE, ScoreRules};
use crate::lanes::{dot, wide};
use crate::matmul::{Matrix, Onto, multiply};
use crate::real::Real;
use crate::threads::Threads;

/// A query head with what forward made of it.
pub(super) struct Query<'a, T> {
    pub head: usize,
    pub queries: Vec<T>,
    pub output: Vec<T>,
    pub gradient: Vec<T>,
    pub logarithms: &'a [T],
    pub rules: ScoreRules<'a>,
}

/// Gradients of a key and value head and of its query heads, those by number.
pub(super) struct Gradients<T> {
    pub queries: Vec<(usize, Vec<T>)>,
    pub keys: Vec<T>,
    pub values: Vec<T>,
}

/// Tiles that are used again and again.
struct Tiles<T> {
    scores: Vec<T>,
    products: Vec<T>,
}

impl Attention {
    /// The gradients; of `shared` only keys and values are read.
    pub(super) fn one_backward<'a, T: Real>(
        &self,
        shared: &Head<'_, T>,
        queries: impl Iterator<Item = Query<'a, T>>,
    ) -> Gradients<T> {
        let size = QUERY_TILE * KEY_TILE;
        let mut tiles = Tiles { scores: vec![T::ZERO; size], products: vec![T::ZERO; size] };
        let mut made = Gradients {
            queries: Vec::new(),
            keys: vec![T::ZERO; shared.keys.len()],
            values: vec![T::ZERO; shared.values.len()],
        };
        for query in queries {
            let mut gradient = vec![T::ZERO; query.queries.len()];
            self.add_query(shared, &query, &mut gradient, &mut made, &mut tiles);
            made.queries.push((query.head, gradient));
        }
        made
    }

    fn add_query<T: Real>(
        &self,
        shared: &Head<'_, T>,
        query: &Query<T>,
        gradient: &mut [T],
        made: &mut Gradients<T>,
        tiles: &mut Tiles<T>,
    ) {
        let (d, e) = (self.head_dim, self.value_head_dim);
        let (queries, keys) = (query.queries.len() / d, shared.keys.len() / d);
        for first in (0..queries).step_by(QUERY_TILE) {
            let rows = QUERY_TILE.min(queries - first);
            let tile_queries = &query.queries[first * d..(first + rows) * d];
            let tile_output = &query.output[first * e..(first + rows) * e];
            let out_gradient = &query.gradient[first * e..(first + rows) * e];
            let tile_gradient = &mut gradient[first * d..(first + rows) * d];
            let mut dots = [T::ZERO; QUERY_TILE];
            wide(|| {
                let pairs = tile_output.chunks_exact(e).zip(out_gradient.chunks_exact(e));
                dots.iter_mut().zip(pairs).for_each(|(dots, (o, g))| *dots = dot(o, g));
            });
            for first_key in self.key_tiles(&query.rules, first, rows, keys) {
                let columns = KEY_TILE.min(keys - first_key);
                let tile_keys = &shared.keys[first_key * d..(first_key + columns) * d];
                let tile_values = &shared.values[first_key * e..(first_key + columns) * e];
                let scores = &mut tiles.scores[..rows * columns];
                let products = &mut tiles.products[..rows * columns];
                let transposed = |x, width| Matrix::rows(x, width).transposed();
                let q = Matrix::rows(tile_queries, d);
                let g = Matrix::rows(out_gradient, e);
                multiply(scores, Onto::Replace, q, transposed(tile_keys, d), Threads::ONE);
                multiply(products, Onto::Replace, g, transposed(tile_values, e), Threads::ONE);
                let scale = self.scale::<T>();
                wide(|| {
                    let tile = scores.chunks_exact_mut(columns).zip(products.chunks_exact_mut(columns));
                    for (row, (scores, products)) in tile.enumerate() {
                        let seen = self.seen(&query.rules, first + row, first_key, columns);
                        let logarithm = query.logarithms[first + row];
                        let pairs = scores[seen.clone()].iter_mut().zip(&mut products[seen.clone()]);
                        match &query.rules.dropout {
                            None => pairs.for_each(|(s, p)| {
                                *s = (*s * scale - logarithm).exp();
                                *p = *s * (*p - dots[row]) * scale;
                            }),
                            Some(drops) => {
                                let factors = drops.factors::<T>(first + row, first_key + seen.start);
                                for (column, (s, p)) in pairs.enumerate() {
                                    let (probability, m) = ((*s * scale - logarithm).exp(), factors(column));
                                    *s = probability * m;
                                    *p = probability * (m * *p - dots[row]) * scale;
                                }
                            }
                        }
                        for hidden in [0..seen.start, seen.end..columns] {
                            scores[hidden.clone()].fill(T::ZERO);
                            products[hidden].fill(T::ZERO);
                        }
                    }
                });
                let key_gradient = &mut made.keys[first_key * d..(first_key + columns) * d];
                let value_gradient = &mut made.values[first_key * e..(first_key + columns) * e];
                multiply(value_gradient, Onto::Add, transposed(scores, columns), g, Threads::ONE);
                multiply(key_gradient, Onto::Add, transposed(products, columns), q, Threads::ONE);
                let products = Matrix::rows(&*products, columns);
                multiply(tile_gradient, Onto::Add, products, Matrix::rows(tile_keys, d), Threads::ONE);
            }
        }
    }
}
