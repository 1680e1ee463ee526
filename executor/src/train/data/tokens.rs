//! What is trained on: tokens, cut into sequences in an order that a seed decides.

use crate::error::RunError;
use crate::random::{Stream, mix};
use crate::train::data::tokenizer::{Tokenizer, encode};
use crate::train::masks::Masks;
use std::path::Path;
use std::sync::Arc;

/// Tokens in a row, and who made them.
#[derive(Debug, Clone)]
pub struct Tokens {
    numbers: Arc<[u32]>,
    tokenizer: Tokenizer,
}

impl Tokens {
    /// A text, each byte a token.
    pub fn bytes(text: &[u8]) -> Self {
        let numbers = text.iter().map(|byte| u32::from(*byte)).collect();
        Self { numbers, tokenizer: Tokenizer::Bytes }
    }

    /// A text in the tokens of a `tokenizer.json`, without special ones around it.
    ///
    /// # Errors
    /// `Tokenizer` if the file cannot be read or is none, `Data` if the text is not UTF-8.
    pub fn tokenized(text: &[u8], tokenizer: &Path) -> Result<Self, RunError> {
        let (numbers, tokenizer) = encode(text, tokenizer)?;
        Ok(Self::of(numbers, tokenizer))
    }

    /// The numbers that a tokenizer gave a text.
    pub(crate) fn of(numbers: Vec<u32>, tokenizer: Tokenizer) -> Self {
        Self { numbers: numbers.into(), tokenizer }
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
        Self { numbers: (0..count as u64).map(next).collect(), tokenizer: Tokenizer::None }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// Who made them.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tells them from others.
    pub(crate) fn fingerprint(&self) -> String {
        let hash = self.numbers.iter().fold(0, |hash, token| mix(hash ^ u64::from(*token)));
        format!("{hash:016x}")
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
    /// The step before which the run began, and the sequences that had been read by then.
    begins: [usize; 2],
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
    /// Sequences of that length, `global_batch` in a step, of tokens below `vocabulary`. A run that goes on `begins` behind a
    /// step and some sequences.
    pub fn new(
        tokens: &'a Tokens,
        [sequence, global_batch, vocabulary]: [usize; 3],
        seed: u64,
        begins: [usize; 2],
    ) -> Result<Self, RunError> {
        if tokens.count() <= sequence {
            let count = tokens.count();
            return Err(RunError::Data(format!(
                "{count} tokens are fewer than one sequence of {sequence} and the token behind it"
            )));
        }
        if let Some(token) = tokens.numbers.iter().find(|token| **token as usize >= vocabulary) {
            return Err(RunError::Data(format!(
                "token {token} is not in the model's vocabulary of {vocabulary}"
            )));
        }
        Ok(Self { tokens, sequence, global_batch, seed, begins, order: None })
    }

    /// `count` sequences of a step (from 0), the `first` one on.
    pub fn batch(&mut self, step: usize, first: usize, count: usize) -> Batch {
        let [begins, read] = self.begins;
        let first = read + (step - begins) * self.global_batch + first;
        let starts: Vec<usize> = (first..first + count).map(|number| self.start(number)).collect();
        let at = |offset: usize| -> Vec<u32> {
            let positions = 0..self.sequence;
            positions
                .flat_map(|position| starts.iter().map(move |start| start + position + offset))
                .map(|at| self.tokens.numbers[at])
                .collect()
        };
        Batch { inputs: at(0), targets: at(1) }
    }

    /// What is dropped of a step's sequences (from 0) from one on.
    pub fn masks(&self, step: usize, first: usize) -> Masks {
        Masks::new(self.seed, step, first)
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
    fn an_epoch_has_every_sequence_once_and_parts_make_the_batch() {
        let tokens = Tokens::of((0..41).collect(), Tokenizer::None);
        let mut loader = Loader::new(&tokens, [4, 5, 41], 1, [0, 0]).unwrap();
        let mut seen: Vec<u32> = (0..2).flat_map(|step| loader.batch(step, 0, 5).inputs).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<u32>>());
        let all = loader.batch(3, 0, 4);
        assert!(all.inputs.iter().zip(&all.targets).all(|(input, target)| input + 1 == *target));
        // Rows of a position stand next to each other: sequences 2 and 3 are every third and fourth of four.
        let part = loader.batch(3, 2, 2);
        let expected: Vec<u32> = all.inputs.chunks(4).flat_map(|row| row[2..].to_vec()).collect();
        assert_eq!(part.inputs, expected);
        // Behind 3 steps of 5 sequences a run of 3 sequences a step goes on with the 16th.
        let mut other = Loader::new(&tokens, [4, 3, 41], 1, [3, 15]).unwrap();
        assert_eq!(other.batch(4, 0, 2), loader.batch(3, 3, 2));
    }

    #[test]
    fn unsuitable_tokens_are_refused() {
        let short = Loader::new(&Tokens::of(vec![1; 4], Tokenizer::None), [4, 1, 10], 0, [0, 0]).unwrap_err();
        assert!(short.to_string().contains("4 tokens are fewer"), "{short}");
        let unknown = Loader::new(&Tokens::bytes(b"abcdefg"), [4, 1, 97], 0, [0, 0]).unwrap_err();
        assert!(unknown.to_string().contains("token 97 is not in the model's vocabulary of 97"), "{unknown}");
    }
}
