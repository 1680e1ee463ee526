//! What is trained on: tokens, cut into sequences in an order that a seed decides.

use crate::error::RunError;
use crate::random::Stream;

/// Tokens in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens(Vec<u32>);

impl Tokens {
    /// A text, each byte a token.
    pub fn bytes(text: &[u8]) -> Self {
        Self(text.iter().map(|byte| u32::from(*byte)).collect())
    }

    /// `count` made-up tokens of a vocabulary. Half of them follow from the one before, so that there is something to
    /// learn: x' = (5 x + 1) mod V.
    pub fn synthetic(vocabulary: usize, count: usize, seed: u64) -> Self {
        let (stream, vocabulary) = (Stream::new(seed, STREAM), vocabulary as u64);
        let mut last = 0;
        let next = |place: u64| {
            last = match stream.below(2 * place, 2) {
                0 => (5 * last + 1) % vocabulary,
                _ => stream.below(2 * place + 1, vocabulary),
            };
            last as u32
        };
        Self((0..count as u64).map(next).collect())
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Distinguishes the numbers that are drawn here from those of weights.
const STREAM: u64 = 1 << 62;

/// Sequences of tokens by step.
#[derive(Debug)]
pub(crate) struct Loader<'a> {
    tokens: &'a Tokens,
    sequence: usize,
    /// Sequences in a step.
    global_batch: usize,
    seed: u64,
    /// The order of an epoch.
    order: Option<(usize, Vec<u32>)>,
}

/// Tokens of a microbatch and those that follow each of them. Row: position · sequences + sequence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub inputs: Vec<u32>,
    pub targets: Vec<u32>,
}

impl<'a> Loader<'a> {
    /// Sequences of that length, so many in a step, of entries below `vocabulary`.
    pub fn new(
        tokens: &'a Tokens,
        [sequence, global_batch, vocabulary]: [usize; 3],
        seed: u64,
    ) -> Result<Self, RunError> {
        if tokens.count() <= sequence {
            let count = tokens.count();
            return Err(RunError::Data(format!(
                "{count} tokens are fewer than one sequence of {sequence} and the token behind it"
            )));
        }
        if let Some(token) = tokens.0.iter().find(|token| **token as usize >= vocabulary) {
            return Err(RunError::Data(format!(
                "token {token} is not in the model's vocabulary of {vocabulary}"
            )));
        }
        Ok(Self { tokens, sequence, global_batch, seed, order: None })
    }

    /// `count` sequences of a step (from 0), the `first` one on.
    pub fn batch(&mut self, step: usize, first: usize, count: usize) -> Batch {
        let starts: Vec<usize> =
            (0..count).map(|index| self.start(step * self.global_batch + first + index)).collect();
        let at = |offset: usize| -> Vec<u32> {
            let positions = 0..self.sequence;
            positions
                .flat_map(|position| starts.iter().map(move |start| start + position + offset))
                .map(|at| self.tokens.0[at])
                .collect()
        };
        Batch { inputs: at(0), targets: at(1) }
    }

    /// Where the n-th sequence of the run begins: every epoch goes once through all of them.
    fn start(&mut self, number: usize) -> usize {
        let sequences = (self.tokens.count() - 1) / self.sequence;
        let epoch = number / sequences;
        if self.order.as_ref().is_none_or(|(known, _)| *known != epoch) {
            let stream = Stream::new(self.seed, STREAM + 1 + epoch as u64);
            self.order = Some((epoch, stream.permutation(sequences)));
        }
        let (_, order) = self.order.as_ref().expect("it was just made");
        order[number % sequences] as usize * self.sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_every_sequence_once_and_parts_make_the_whole() {
        let tokens = Tokens((0..41).collect());
        let mut loader = Loader::new(&tokens, [4, 5, 41], 1).unwrap();
        let mut seen: Vec<u32> = (0..2).flat_map(|step| loader.batch(step, 0, 5).inputs).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<u32>>());
        let whole = loader.batch(3, 0, 4);
        assert!(whole.inputs.iter().zip(&whole.targets).all(|(input, target)| input + 1 == *target));
        // Rows of a position stand next to each other: sequences 2 and 3 are every third and fourth of four.
        let part = loader.batch(3, 2, 2);
        let own: Vec<u32> = whole.inputs.chunks(4).flat_map(|row| row[2..].to_vec()).collect();
        assert_eq!(part.inputs, own);
    }

    #[test]
    fn unsuitable_tokens_are_refused() {
        let short = Loader::new(&Tokens(vec![1; 4]), [4, 1, 10], 0).unwrap_err();
        assert!(short.to_string().contains("4 tokens are fewer"), "{short}");
        let unknown = Loader::new(&Tokens::bytes(b"abcdefg"), [4, 1, 97], 0).unwrap_err();
        assert!(unknown.to_string().contains("token 97 is not in the model's vocabulary of 97"), "{unknown}");
    }
}
