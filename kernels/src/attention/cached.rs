//! Causal attention of new tokens of one sequence to all tokens so far, whose keys and values are kept.
//!
//! A query's output is computed for itself, key by key in ascending order: it has the same bits alone and among others.

use super::Attention;
use crate::lanes::{dot, max, sum, wide};
use crate::real::Real;
use crate::threads::Threads;

/// The keys and values of the tokens so far, for each key head rows of a token each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyValueCache<T> {
    keys: Vec<Vec<T>>,
    values: Vec<Vec<T>>,
}

impl Attention {
    /// The heads' outputs of new tokens, row by row; `qkv` has their queries, keys and values, of which the cache keeps the latter.
    /// With a `window` each query sees that many tokens at most, itself and those before it.
    ///
    /// # Panics
    /// If there are several sequences, or the cache is of another layer.
    pub fn forward_cached<T: Real>(
        &self,
        qkv: &[T],
        cache: &mut KeyValueCache<T>,
        window: Option<usize>,
        threads: Threads,
    ) -> Vec<T> {
        assert_eq!(self.batch, 1, "a cache is of one sequence");
        let [queries, keys, _] = self.columns();
        let (d, e) = (self.head_dim, self.value_head_dim);
        cache.keys.resize_with(self.kv_heads, Vec::new);
        cache.values.resize_with(self.kv_heads, Vec::new);
        let before = cache.keys[0].len() / d;
        for row in qkv.chunks_exact(self.row()) {
            for head in 0..self.kv_heads {
                cache.keys[head].extend_from_slice(&row[queries + head * d..][..d]);
                cache.values[head].extend_from_slice(&row[queries + keys + head * e..][..e]);
            }
        }
        let rows = qkv.len() / self.row();
        let by_head = threads.each(self.heads, |head| {
            let of_head = head / (self.heads / self.kv_heads);
            let (keys, values) = (&cache.keys[of_head], &cache.values[of_head]);
            let mut out = vec![T::ZERO; rows * e];
            let mut scores = vec![T::ZERO; before + rows];
            for (row, out) in out.chunks_exact_mut(e).enumerate() {
                let query = &qkv[row * self.row() + head * d..][..d];
                let end = before + row + 1;
                let seen = window.map_or(0, |window| end.saturating_sub(window))..end;
                let (keys, values) = (&keys[seen.start * d..end * d], &values[seen.start * e..end * e]);
                wide(|| self.one_query(query, keys, values, &mut scores[..seen.len()], out));
            }
            out
        });
        let mut out = vec![T::ZERO; rows * self.output_row()];
        for (row, out) in out.chunks_exact_mut(self.output_row()).enumerate() {
            for (out, made) in out.chunks_exact_mut(e).zip(&by_head) {
                out.copy_from_slice(&made[row * e..(row + 1) * e]);
            }
        }
        out
    }

    /// Softmax of the scores, and with it the mean of the values.
    #[inline(always)]
    fn one_query<T: Real>(&self, query: &[T], keys: &[T], values: &[T], scores: &mut [T], out: &mut [T]) {
        let scale: T = self.scale();
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(self.head_dim)) {
            *score = dot(query, key) * scale;
        }
        let largest = max(scores);
        scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
        let inverse = T::ONE / sum(scores, |p| p);
        for (score, value) in scores.iter().zip(values.chunks_exact(self.value_head_dim)) {
            out.iter_mut().zip(value).for_each(|(out, value)| *out += *score * *value);
        }
        out.iter_mut().for_each(|out| *out *= inverse);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mask, ScoreRules};
    use super::*;

    /// 11 tokens at once, one by one and in two parts, against the kernel of training.
    #[test]
    fn however_tokens_come_their_outputs_have_the_same_bits() {
        for (heads, kv_heads) in [(4, 4), (4, 2), (6, 1)] {
            let attention =
                Attention { batch: 1, heads, kv_heads, head_dim: 20, value_head_dim: 18, mask: Mask::Causal };
            let qkv: Vec<f32> = (0..11 * attention.row()).map(|at| (1.3 * at as f32).sin()).collect();
            let made = |parts: &[usize], threads: usize| {
                let mut cache = KeyValueCache::default();
                let mut rest = &qkv[..];
                let mut out = Vec::new();
                for rows in parts {
                    let (part, behind) = rest.split_at(rows * attention.row());
                    out.extend(attention.forward_cached(part, &mut cache, None, Threads::new(threads)));
                    rest = behind;
                }
                out
            };
            let at_once = made(&[11], 1);
            assert_eq!(made(&[1; 11], 1), at_once);
            assert_eq!(made(&[4, 7], 3), at_once);
            let expected = attention.forward(ScoreRules::default(), &qkv, Threads::ONE).heads;
            let apart = at_once.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-6, "{apart}");
        }
    }
    /// A window of 4: a query's output is that of the last 4 tokens alone. One as long as the sequence changes nothing.
    #[test]
    fn a_window_hides_what_is_before_it() {
        let attention =
            Attention { batch: 1, heads: 2, kv_heads: 1, head_dim: 4, value_head_dim: 4, mask: Mask::Causal };
        let row = attention.row();
        let qkv: Vec<f32> = (0..11 * row).map(|at| (1.3 * at as f32).sin()).collect();
        let made = |qkv: &[f32], window: Option<usize>| {
            attention.forward_cached(qkv, &mut KeyValueCache::default(), window, Threads::ONE)
        };
        let windowed = made(&qkv, Some(4));
        for last in 3..11 {
            let alone = made(&qkv[(last - 3) * row..(last + 1) * row], None);
            assert_eq!(windowed[last * 8..(last + 1) * 8], alone[3 * 8..], "token {last}");
        }
        assert_ne!(windowed, made(&qkv, None));
        assert_eq!(made(&qkv, Some(11)), made(&qkv, None));
        // Token by token too.
        let mut cache = KeyValueCache::default();
        let each = qkv
            .chunks_exact(row)
            .flat_map(|row| attention.forward_cached(row, &mut cache, Some(4), Threads::ONE));
        assert_eq!(each.collect::<Vec<f32>>(), windowed);
    }
}
