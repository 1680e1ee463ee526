//! How a token is drawn from its logits.

use crate::random::Stream;
use serde::Serialize;
use std::num::NonZeroUsize;

/// How tokens are drawn: from the softmax of the logits by the temperature, of the likeliest ones only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sampling {
    /// Divides the logits; above 0.
    pub temperature: f64,
    /// How many of the likeliest may be drawn; all if `None`.
    pub top_k: Option<NonZeroUsize>,
    /// Of these the fewest likeliest whose probabilities add up to this may be drawn; from 0 to 1, and always one.
    /// Source: Holtzman et al. 2020, The Curious Case of Neural Text Degeneration, arXiv 1904.09751, section 3.1.
    pub top_p: f64,
    /// From which the random numbers are made.
    pub seed: u64,
}

/// Distinguishes the numbers that are drawn for tokens from those of weights and data.
const STREAM: u64 = 1 << 61;

impl Sampling {
    /// The token of a draw: the same for the same logits, prompt and place, whatever the plan.
    pub(crate) fn draw(&self, logits: &[f32], prompt: usize, place: usize) -> usize {
        let stream = Stream::new(self.seed, STREAM + prompt as u64);
        // 53 bits, below 1.
        let uniform = (stream.bits(place as u64) >> 11) as f64 / (1u64 << 53) as f64;
        self.at(logits, uniform)
    }

    /// The first of the tokens, the likeliest first, up to which the probabilities exceed a number below 1.
    fn at(&self, logits: &[f32], uniform: f64) -> usize {
        let candidates = self.candidates(logits);
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        for (token, weight) in &candidates {
            sum += weight;
            if sum > uniform * total {
                return *token;
            }
        }
        candidates.last().expect("the likeliest is always there").0
    }

    /// The tokens that may be drawn, the likeliest first, with numbers in proportion to their probabilities.
    fn candidates(&self, logits: &[f32]) -> Vec<(usize, f64)> {
        let largest = f64::from(logits[greedy(logits)]);
        let weight = |logit: &f32| ((f64::from(*logit) - largest) / self.temperature).exp();
        let mut all: Vec<(usize, f64)> = logits.iter().map(weight).enumerate().collect();
        let by_weight =
            |one: &(usize, f64), other: &(usize, f64)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
        if let Some(count) = self.top_k.map(NonZeroUsize::get).filter(|count| *count < all.len()) {
            all.select_nth_unstable_by(count, by_weight);
            all.truncate(count);
        }
        all.sort_unstable_by(by_weight);
        let total: f64 = all.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        let enough = all.iter().position(|(_, weight)| {
            sum += weight;
            sum >= self.top_p * total
        });
        all.truncate(enough.map_or(all.len(), |last| last + 1));
        all
    }
}

/// The likeliest token, of equally likely ones the first.
pub(crate) fn greedy(logits: &[f32]) -> usize {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 7 };

    /// Probabilities 0.5, 0.25, 0.125 and 0.125 at temperature 1, in no order.
    fn logits() -> [f32; 4] {
        [0.125f32, 0.5, 0.125, 0.25].map(f32::ln)
    }

    fn tokens(sampling: Sampling) -> Vec<usize> {
        sampling.candidates(&logits()).into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn the_likeliest_come_first_and_only_so_many() {
        let top_k = |count| Sampling { top_k: NonZeroUsize::new(count), ..PLAIN };
        let top_p = |top_p| Sampling { top_p, ..PLAIN };
        assert_eq!(tokens(PLAIN), [1, 3, 0, 2]);
        assert_eq!(tokens(top_k(1)), [1]);
        // Of equally likely ones the first.
        assert_eq!(tokens(top_k(3)), [1, 3, 0]);
        assert_eq!(tokens(top_k(4)), [1, 3, 0, 2]);
        assert_eq!(tokens(top_k(50)), [1, 3, 0, 2]);
        assert_eq!(tokens(top_p(0.0)), [1]);
        assert_eq!(tokens(top_p(0.49)), [1]);
        assert_eq!(tokens(top_p(0.51)), [1, 3]);
        assert_eq!(tokens(top_p(0.76)), [1, 3, 0]);
        // Of the first two the first has two thirds.
        assert_eq!(tokens(Sampling { top_p: 0.66, ..top_k(2) }), [1]);
        assert_eq!(tokens(Sampling { top_p: 0.67, ..top_k(2) }), [1, 3]);
        // The square of the probabilities: 16 of 22 parts.
        assert_eq!(tokens(Sampling { temperature: 0.5, ..top_p(0.72) }), [1]);
        assert_eq!(tokens(Sampling { temperature: 0.5, ..top_p(0.73) }), [1, 3]);
    }

    #[test]
    fn numbers_from_0_to_1_lead_to_the_tokens_in_proportion() {
        for (uniform, token) in
            [(0.0, 1), (0.49, 1), (0.51, 3), (0.74, 3), (0.76, 0), (0.88, 2), (0.999_999, 2)]
        {
            assert_eq!(PLAIN.at(&logits(), uniform), token, "{uniform}");
        }
    }

    /// Pearson's χ² of 40,000 draws: with 3 degrees of freedom above 16.3 once in a thousand.
    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        for (sampling, expected) in [
            (PLAIN, vec![0.125, 0.5, 0.125, 0.25]),
            // In proportion to the squares: 1, 16, 1 and 4.
            (Sampling { temperature: 0.5, ..PLAIN }, [1.0, 16.0, 1.0, 4.0].map(|part| part / 22.0).into()),
            (Sampling { top_p: 0.7, ..PLAIN }, vec![0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]),
            (
                Sampling { top_k: NonZeroUsize::new(3), seed: 8, ..PLAIN },
                vec![1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0],
            ),
        ] {
            let mut counts = [0.0_f64; 4];
            for prompt in 0..4 {
                (0..10_000).for_each(|place| counts[sampling.draw(&logits(), prompt, place)] += 1.0);
            }
            let terms = counts.iter().zip(&expected).map(|(count, part)| {
                let mean = 40_000.0 * part;
                if mean == 0.0 {
                    if *count > 0.0 { f64::INFINITY } else { 0.0 }
                } else {
                    (count - mean).powi(2) / mean
                }
            });
            let chi_squared: f64 = terms.sum();
            assert!(chi_squared < 16.3, "{sampling:?}: {counts:?}");
        }
    }

    #[test]
    fn draws_follow_from_seed_prompt_and_place() {
        let all = |seed, prompt| -> Vec<usize> {
            (0..50).map(|place| Sampling { seed, ..PLAIN }.draw(&logits(), prompt, place)).collect()
        };
        assert_eq!(all(1, 0), all(1, 0));
        assert_ne!(all(1, 0), all(2, 0));
        assert_ne!(all(1, 0), all(1, 1));
        assert_eq!(greedy(&[0.5, 2.0, 2.0, -1.0]), 1);
    }
}
