//! The documents that are packed into sequences: where they begin in a source, and which tokens of a sequence are of which.
//!
//! Documents stand one behind the other, and sequences are cut wherever they end. The part of a document in a sequence begins
//! at position 0 of its own: it attends to no other document, and its last token has no loss if the token behind it belongs to
//! another one.

use crate::random::mix;
use std::sync::Arc;
use trainwright_kernels::attention;

/// How documents are separated.
#[derive(Debug, Clone)]
pub(crate) enum DocumentStarts {
    /// The numbers of the tokens that begin documents, ascending, the first document's left out.
    Listed(Arc<[u64]>),
    /// A document begins behind each of this token.
    Behind(u32),
}

impl DocumentStarts {
    /// Distinguishes them from those of other data.
    pub fn fingerprint(&self) -> u64 {
        match self {
            DocumentStarts::Listed(starts) => starts.iter().fold(1, |hash, start| mix(hash ^ start)),
            DocumentStarts::Behind(token) => mix(u64::from(*token)),
        }
    }

    /// How many documents begin behind the token of number `first`, up to the token `count` behind it.
    pub fn listed_behind(starts: &[u64], first: usize, count: usize) -> usize {
        let up_to = |last: usize| starts.partition_point(|start| *start as usize <= last);
        up_to(first + count) - up_to(first)
    }

    /// Where documents begin among some `tokens`, the first of which has the number `first`; a beginning at the first is left
    /// out.
    pub fn among(&self, first: usize, tokens: &[u32]) -> Vec<usize> {
        match self {
            DocumentStarts::Listed(starts) => {
                let from = starts.partition_point(|start| *start as usize <= first);
                let starts = starts[from..].iter().map(|start| *start as usize - first);
                starts.take_while(|start| *start < tokens.len()).collect()
            }
            DocumentStarts::Behind(end) => {
                (1..tokens.len()).filter(|place| tokens[place - 1] == *end).collect()
            }
        }
    }
}

/// The documents of some sequences of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackedDocuments {
    /// As in the kernels' `Documents`.
    bounds: Vec<[u32; 2]>,
    positions: usize,
}

impl PackedDocuments {
    /// Of sequences of `positions` tokens; `starts` has where documents begin in each, as `DocumentStarts::among` says.
    pub fn of(positions: usize, starts: impl IntoIterator<Item = Vec<usize>>) -> Self {
        let mut bounds = Vec::new();
        for starts in starts {
            let inside = || starts.iter().copied().filter(|start| *start < positions);
            for (from, to) in std::iter::once(0).chain(inside()).zip(inside().chain([positions])) {
                bounds.extend(std::iter::repeat_n([from as u32, to as u32], to - from));
            }
        }
        Self { bounds, positions }
    }

    /// For kernels that get all positions.
    pub fn view(&self) -> attention::Documents<'_> {
        attention::Documents { bounds: &self.bounds, positions: self.positions, first: [0, 0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_begin_where_the_list_or_a_token_says() {
        let listed = DocumentStarts::Listed([3, 5, 9, 12].into());
        let check = |starts: &DocumentStarts, first: usize, tokens: &[u32], expected: &[usize]| {
            assert_eq!(starts.among(first, tokens), expected, "{starts:?} {first}");
        };
        check(&listed, 0, &[0; 9], &[3, 5]);
        check(&listed, 0, &[0; 10], &[3, 5, 9]);
        check(&listed, 3, &[0; 7], &[2, 6]);
        check(&listed, 12, &[0; 7], &[]);
        check(&DocumentStarts::Listed([].into()), 0, &[0; 7], &[]);
        let behind = DocumentStarts::Behind(7);
        check(&behind, 100, &[7, 1, 2, 7, 7, 3, 7], &[1, 4, 5]);
        assert_ne!(listed.fingerprint(), DocumentStarts::Listed([3, 5, 9, 13].into()).fingerprint());
    }

    #[test]
    fn tokens_know_the_bounds_of_their_document() {
        let packed = PackedDocuments::of(5, [vec![2, 5], vec![], vec![1, 2]]);
        let expected =
            [[[0, 2], [0, 2], [2, 5], [2, 5], [2, 5]], [[0, 5]; 5], [[0, 1], [1, 2], [2, 5], [2, 5], [2, 5]]];
        assert_eq!(packed.view().bounds, expected.concat());
        assert_eq!(packed.view().positions, 5);
    }
}
