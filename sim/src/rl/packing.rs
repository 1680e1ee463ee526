//! Samples of unequal lengths over data ranks, packed into microbatches.

/// What the rank with the most to do computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Its microbatches.
    pub microbatches: usize,
    /// Its tokens.
    pub tokens: usize,
}

/// Samples over ranks, each next longest to the rank with the fewest tokens, and on each rank packed into microbatches of at most
/// `pack` tokens, first fit. A longer sample has a microbatch of its own. All ranks run as many microbatches as the one that has
/// most, since they communicate in each; the tokens are those of the fullest rank.
pub fn packed(lengths: &[usize], ranks: usize, pack: usize) -> Packed {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    let mut shares: Vec<Vec<usize>> = vec![Vec::new(); ranks.max(1)];
    let mut tokens = vec![0usize; ranks.max(1)];
    for length in sorted {
        let emptiest = (0..tokens.len()).min_by_key(|rank| tokens[*rank]).expect("there is a rank");
        tokens[emptiest] += length;
        shares[emptiest].push(length);
    }
    let microbatches = shares.iter().map(|share| bins(share, pack)).max().unwrap_or(1);
    Packed { microbatches: microbatches.max(1), tokens: tokens.into_iter().max().unwrap_or(0).max(1) }
}

/// Updates of samples that are dealt to the ranks once: as many to each, the longest to and fro, so that ranks have about as many
/// tokens in all. Each rank goes through its share in an order without a trend, an even part in each update, which takes as long
/// as the rank with the most tokens.
pub(super) fn packed_by_step(lengths: &[usize], ranks: usize, updates: usize, pack: usize) -> Vec<Packed> {
    let ranks = ranks.max(1);
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    let mut shares: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for (index, length) in sorted.into_iter().enumerate() {
        let (round, place) = (index / ranks, index % ranks);
        let rank = if round % 2 == 0 { place } else { ranks - 1 - place };
        shares[rank].push(length);
    }
    for (rank, share) in shares.iter_mut().enumerate() {
        shuffle(share, rank as u64 + 1);
    }
    let of_update = |update: usize| {
        let parts = shares.iter().map(|share| {
            let bound = |update: usize| share.len() * update / updates.max(1);
            let mut part = share[bound(update)..bound(update + 1)].to_vec();
            part.sort_unstable_by(|one, other| other.cmp(one));
            (bins(&part, pack), part.iter().sum::<usize>())
        });
        parts.fold((1, 1), |most, part| (most.0.max(part.0), most.1.max(part.1)))
    };
    (0..updates.max(1)).map(of_update).map(|(microbatches, tokens)| Packed { microbatches, tokens }).collect()
}

/// The order of a linear congruential generator (Knuth's MMIX), the same in every run.
fn shuffle(share: &mut [usize], seed: u64) {
    let mut state = seed;
    for last in (1..share.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        share.swap(last, (state >> 33) as usize % (last + 1));
    }
}

/// Bins of at most `room` that first fit fills, the longest first.
fn bins(descending: &[usize], room: usize) -> usize {
    let mut left: Vec<usize> = Vec::new();
    for length in descending {
        match left.iter_mut().find(|left| **left >= *length) {
            Some(left) => *left -= length,
            None => left.push(room.saturating_sub(*length)),
        }
    }
    left.len()
}

/// Tokens of equal samples with the same tokens in all and the same work of attention: Σ l² / Σ l.
pub(super) fn equivalent_length(lengths: &[usize]) -> f64 {
    let sum: f64 = lengths.iter().map(|length| *length as f64).sum();
    lengths.iter().map(|length| (*length as f64).powi(2)).sum::<f64>() / sum.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_packed_and_the_fullest_rank_counts() {
        let check = |lengths: &[usize], ranks: usize, pack: usize, microbatches: usize, tokens: usize| {
            assert_eq!(packed(lengths, ranks, pack), Packed { microbatches, tokens }, "{lengths:?}");
        };
        check(&[5, 5, 5, 5], 2, 10, 1, 10);
        // One long sample: the other rank has the rest.
        check(&[12, 3, 3, 3, 3], 2, 10, 2, 12);
        // It alone is more than its share.
        check(&[90, 5, 5], 2, 10, 1, 90);
        check(&[], 2, 10, 1, 1);
        assert_eq!(equivalent_length(&[3, 1]), 2.5);
    }

    #[test]
    fn updates_of_samples_dealt_once_wait_for_their_fullest_rank() {
        let check = |lengths: &[usize], ranks: usize, updates: usize, expected: &[(usize, usize)]| {
            let found = packed_by_step(lengths, ranks, updates, 10);
            let found: Vec<_> = found.iter().map(|part| (part.microbatches, part.tokens)).collect();
            assert_eq!(found, expected, "{lengths:?}");
        };
        check(&[5, 5, 5, 5], 2, 2, &[(1, 5), (1, 5)]);
        // One update: 9 + 1 and 4 + 3 tokens.
        check(&[9, 4, 3, 1], 2, 1, &[(1, 10)]);
        check(&[], 2, 1, &[(1, 1)]);
        // Two updates over two ranks: whichever order, the rank with 9 is alone the fullest in its update.
        let parts = packed_by_step(&[9, 4, 3, 1], 2, 2, 10);
        assert!(parts.iter().any(|part| part.tokens == 9), "{parts:?}");
        let balanced: usize = packed(&[9, 4, 3, 1], 2, 10).tokens;
        assert!(parts.iter().map(|part| part.tokens).sum::<usize>() >= balanced);
    }

    /// No assignment has a fullest rank below the mean or the longest, and this one is within 4/3 of the best (Graham 1969).
    #[test]
    fn the_fullest_rank_is_within_a_third_of_the_best() {
        for seed in 0..60usize {
            let lengths: Vec<usize> = (0..7).map(|index| 1 + (seed * 37 + index * index * 61) % 53).collect();
            let ranks = 2 + seed % 2;
            let best = (0..ranks.pow(7))
                .map(|code| {
                    let mut sums = vec![0; ranks];
                    lengths.iter().enumerate().for_each(|(at, length)| {
                        sums[code / ranks.pow(at as u32) % ranks] += length;
                    });
                    sums.into_iter().max().unwrap()
                })
                .min()
                .unwrap();
            let found = packed(&lengths, ranks, 1000).tokens;
            assert!(found >= best && 3 * found <= 4 * best, "{lengths:?}: {found}, best {best}");
        }
    }
}
