//! Documents that are packed into sequences: a query sees the keys of its document and no others.

use std::ops::Range;

/// The documents of packed sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Documents<'a> {
    /// For each token the first position of its document and the position behind its last one, both within the sequence.
    /// Index: sequence · positions + position.
    pub bounds: &'a [[u32; 2]],
    /// Positions of a sequence.
    pub positions: usize,
    /// The positions of the first query and of the first key that the kernel gets.
    pub first: [usize; 2],
}

impl Documents<'_> {
    /// A token's position counted from the beginning of its document.
    pub fn position(&self, sequence: usize, position: usize) -> usize {
        position - self.bounds[sequence * self.positions + position][0] as usize
    }

    /// Those of one sequence.
    pub(super) fn of(self, sequence: usize) -> Self {
        let first = sequence * self.positions;
        Self { bounds: &self.bounds[first..first + self.positions], ..self }
    }

    /// Which keys, of those from `first_key` on, the query sees: columns below `end`. Queries and keys are counted from `first`.
    #[inline(always)]
    pub(super) fn seen(&self, query: usize, first_key: usize, end: usize) -> Range<usize> {
        let [first_query, key_position] = self.first;
        let column = |position: u32| (position as usize).saturating_sub(key_position + first_key).min(end);
        let [from, to] = self.bounds[first_query + query];
        column(from)..column(to)
    }

    /// The keys below `end` that some of `queries` queries may see. Bounds never fall along a sequence.
    pub(super) fn seen_by_any(&self, query: usize, queries: usize, end: usize) -> Range<usize> {
        self.seen(query, 0, end).start..self.seen(query + queries - 1, 0, end).end
    }
}
