//! Attention that never stores the scores: they are made tile by tile, and a running maximum and sum turn tiles into a
//! softmax.
//!
//! One head, queries Q (n × d), keys K (m × d), values V (m × e): O = softmax(Q Kᵀ/√d) V. Forward keeps for each query the
//! logarithm of its sum of exponentials, L; backward makes P = e^(S − L) again:
//! ∂V = Pᵀ ∂O, ∂S = P ∘ (∂O Vᵀ − D), ∂Q = ∂S K/√d, ∂K = ∂Sᵀ Q/√d, D the dot product of each row of ∂O with O's.
//! Source: Dao 2023, arXiv 2307.08691, algorithms 1 and 2.

mod backward;
mod cached;
mod documents;
mod forward;
mod tile;

pub use cached::KeyValueCache;
pub use documents::Documents;
pub use tile::{Tile, TileGradients};

use crate::dropout::{Dropout, RowMask};
use crate::real::Real;
use crate::threads::Threads;
use std::ops::Range;

/// Queries in a tile.
const QUERY_TILE: usize = 64;
/// Keys in a tile.
const KEY_TILE: usize = 128;

/// The layout of the heads of some sequences. Rows are tokens, those of all sequences of a position next to each other:
/// row = position · batch + sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, each for equally many of those.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Which keys a query sees.
    pub mask: Mask,
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// All keys.
    Full,
    /// The keys up to its position.
    Causal,
}

/// The results of forward.
#[derive(Debug, Clone, PartialEq)]
pub struct Output<T> {
    /// The heads' outputs, side by side in each row.
    pub heads: Vec<T>,
    /// L by sequence, head and position.
    pub logarithms: Vec<T>,
}

/// The tensors that backward reads in addition to the inputs.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a, T> {
    /// Forward's results.
    pub heads: &'a [T],
    /// L.
    pub logarithms: &'a [T],
    /// The gradient of the heads' outputs.
    pub gradient: &'a [T],
}

/// Dropout of the probabilities: P becomes M ∘ P behind the softmax, so that O = (M ∘ P) V and
/// ∂V = (M ∘ P)ᵀ ∂O, ∂S = P ∘ (M ∘ (∂O Vᵀ) − D); D is still the dot product of each row of ∂O with O's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreDropout {
    /// Dropout of all probabilities, by sequence, head, query and key.
    pub dropout: Dropout,
    /// The first sequence, head, query and key of the part that is here.
    pub first: [usize; 4],
}

impl ScoreDropout {
    /// The dropout of one head.
    fn of(mut self, sequence: usize, head: usize) -> Self {
        self.first[0] += sequence;
        self.first[1] += head;
        self
    }

    /// M of a query and keys from one on.
    fn factors<T: Real>(&self, query: usize, key: usize) -> impl Fn(usize) -> T + use<T> {
        let [sequence, head, first_query, first_key] = self.first;
        let row: RowMask = self.dropout.row(&[sequence, head, first_query + query]);
        move |column| row.factor(first_key + key + column)
    }
}

/// What hides or drops scores in addition to `Attention::mask`; by default nothing does.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ScoreRules<'a> {
    /// Dropout of the probabilities.
    pub dropout: Option<ScoreDropout>,
    /// The documents of packed sequences.
    pub documents: Option<Documents<'a>>,
}

impl From<ScoreDropout> for ScoreRules<'_> {
    fn from(dropout: ScoreDropout) -> Self {
        Self { dropout: Some(dropout), documents: None }
    }
}

impl ScoreRules<'_> {
    /// The rules of one head of one sequence.
    fn of(self, sequence: usize, head: usize) -> Self {
        Self {
            dropout: self.dropout.map(|dropout| dropout.of(sequence, head)),
            documents: self.documents.map(|documents| documents.of(sequence)),
        }
    }
}

/// One head, each matrix in a separate buffer.
struct Head<'a, T> {
    queries: Vec<T>,
    keys: Vec<T>,
    values: Vec<T>,
    rules: ScoreRules<'a>,
}

impl Attention {
    /// Columns of a row of queries, keys and values: all query heads, all key heads, all value heads.
    pub fn columns(&self) -> [usize; 3] {
        [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_head_dim]
    }

    /// Length of a row of queries, keys and values.
    pub fn row(&self) -> usize {
        self.columns().iter().sum()
    }

    /// Length of an output row.
    pub fn output_row(&self) -> usize {
        self.heads * self.value_head_dim
    }

    /// The heads' outputs from rows of queries, keys and values.
    pub fn forward<T: Real>(&self, rules: ScoreRules, qkv: &[T], threads: Threads) -> Output<T> {
        let positions = qkv.len() / self.row() / self.batch;
        self.each_head(rules, positions, threads, |sequence, head| self.head(qkv, sequence, head))
    }

    /// The outputs of all heads, each of `positions` queries; `head_of` takes a sequence and a head.
    fn each_head<'a, T: Real>(
        &self,
        rules: ScoreRules<'a>,
        positions: usize,
        threads: Threads,
        head_of: impl Fn(usize, usize) -> Head<'a, T> + Sync,
    ) -> Output<T> {
        let made = threads.each(self.batch * self.heads, |task| {
            let (sequence, head) = (task / self.heads, task % self.heads);
            let rules = rules.of(sequence, head);
            self.one_forward(&Head { rules, ..head_of(sequence, head) })
        });
        let mut heads = vec![T::ZERO; positions * self.batch * self.output_row()];
        let mut logarithms = Vec::with_capacity(self.batch * self.heads * positions);
        for (task, (output, of_head)) in made.into_iter().enumerate() {
            let (sequence, head) = (task / self.heads, task % self.heads);
            let place = Place { sequence, row: self.output_row(), first: head * self.value_head_dim };
            self.put(&mut heads, place, &output, self.value_head_dim);
            logarithms.extend(of_head);
        }
        Output { heads, logarithms }
    }

    /// The gradients of rows of queries, keys and values; `rules` as in forward.
    pub fn backward<T: Real>(&self, rules: ScoreRules, qkv: &[T], kept: Kept<T>, threads: Threads) -> Vec<T> {
        let positions = qkv.len() / self.row() / self.batch;
        let [queries, keys, _] = self.columns();
        let (d, e) = (self.head_dim, self.value_head_dim);
        let shared = self.heads / self.kv_heads;
        let made = threads.each(self.batch * self.kv_heads, |task| {
            let (sequence, kv_head) = (task / self.kv_heads, task % self.kv_heads);
            let query_heads = (kv_head * shared..(kv_head + 1) * shared).map(|head| {
                let place = Place { sequence, row: self.output_row(), first: head * e };
                let rows = (sequence * self.heads + head) * positions..;
                backward::Query {
                    head,
                    queries: self.take(qkv, Place { sequence, row: self.row(), first: head * d }, d),
                    output: self.take(kept.heads, place, e),
                    gradient: self.take(kept.gradient, place, e),
                    logarithms: &kept.logarithms[rows][..positions],
                    rules: rules.of(sequence, head),
                }
            });
            self.one_backward(&self.head(qkv, sequence, kv_head * shared), query_heads)
        });
        let mut gradients = vec![T::ZERO; qkv.len()];
        for (task, made) in made.into_iter().enumerate() {
            let (sequence, kv_head) = (task / self.kv_heads, task % self.kv_heads);
            let place = |first| Place { sequence, row: self.row(), first };
            for (head, gradient) in &made.queries {
                self.put(&mut gradients, place(head * d), gradient, d);
            }
            self.put(&mut gradients, place(queries + kv_head * d), &made.keys, d);
            self.put(&mut gradients, place(queries + keys + kv_head * e), &made.values, e);
        }
        gradients
    }

    /// A query head with its keys and values, each row of it behind the one before.
    fn head<T: Real>(&self, qkv: &[T], sequence: usize, head: usize) -> Head<'static, T> {
        let [queries, keys, _] = self.columns();
        let (d, e) = (self.head_dim, self.value_head_dim);
        let kv_head = head / (self.heads / self.kv_heads);
        let take = |first, width| self.take(qkv, Place { sequence, row: self.row(), first }, width);
        Head {
            queries: take(head * d, d),
            keys: take(queries + kv_head * d, d),
            values: take(queries + keys + kv_head * e, e),
            rules: ScoreRules::default(),
        }
    }

    fn take<T: Real>(&self, rows: &[T], place: Place, width: usize) -> Vec<T> {
        let sequence_rows = rows.chunks_exact(place.row).skip(place.sequence).step_by(self.batch);
        let mut taken = Vec::with_capacity(rows.len() / place.row / self.batch * width);
        sequence_rows.for_each(|row| taken.extend_from_slice(&row[place.first..place.first + width]));
        taken
    }

    fn put<T: Real>(&self, rows: &mut [T], place: Place, from: &[T], width: usize) {
        let sequence_rows = rows.chunks_exact_mut(place.row).skip(place.sequence).step_by(self.batch);
        for (row, from) in sequence_rows.zip(from.chunks_exact(width)) {
            row[place.first..place.first + width].copy_from_slice(from);
        }
    }

    fn scale<T: Real>(&self) -> T {
        T::of(1.0 / (self.head_dim as f64).sqrt())
    }

    /// Which of `keys` keys from `first_key` on the query at `position` sees: columns of a tile.
    #[inline(always)]
    fn seen(&self, rules: &ScoreRules, position: usize, first_key: usize, keys: usize) -> Range<usize> {
        let end = match self.mask {
            Mask::Full => keys,
            Mask::Causal => (position + 1).saturating_sub(first_key).min(keys),
        };
        match &rules.documents {
            None => 0..end,
            Some(documents) => documents.seen(position, first_key, end),
        }
    }

    /// The first keys of the tiles of which queries from `position` on see some.
    fn key_tiles(
        &self,
        rules: &ScoreRules,
        position: usize,
        queries: usize,
        keys: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let end = match self.mask {
            Mask::Full => keys,
            Mask::Causal => keys.min(position + queries),
        };
        let seen = match &rules.documents {
            None => 0..end,
            Some(documents) => documents.seen_by_any(position, queries, end),
        };
        // Tiles begin at multiples of their size, whatever is hidden: so sums have the same order.
        (seen.start / KEY_TILE * KEY_TILE..seen.end).step_by(KEY_TILE)
    }
}

/// The columns of one head of one sequence.
#[derive(Clone, Copy)]
struct Place {
    sequence: usize,
    /// Length of a row.
    row: usize,
    /// The head's first column.
    first: usize,
}
