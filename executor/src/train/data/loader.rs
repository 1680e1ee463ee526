//! Tokens cut into sequences, in an order that a seed decides.
//!
//! Which tokens the n-th sequence of a run has depends on the data, the seed and n alone: every rank finds its part of a batch by
//! itself, and a resumed run goes on with the next sequence.

use super::documents::PackedDocuments;
use super::source::Source;
use super::tokens::{STREAM, Tokens};
use crate::error::{Fault, RunError};
use crate::random::{Stream, mix};
use crate::train::masks::Masks;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use trainwright_kernels::cross_entropy::IGNORED;

/// The sizes of batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchShape {
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Sequences of a step, over all ranks.
    pub global_batch: usize,
    /// Tokens are below it.
    pub vocabulary: usize,
    /// Whether documents are kept apart.
    pub document_mask: bool,
}

/// In which order sequences are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Shuffled in every epoch.
    Shuffled,
    /// As they are.
    Sequential,
}

/// The shuffled orders of the last epochs, which the ranks of a process share.
#[derive(Debug, Default)]
pub(crate) struct EpochOrders(Mutex<BTreeMap<[usize; 2], Arc<[u32]>>>);

impl EpochOrders {
    /// The order of an epoch of a source.
    fn of(&self, source: usize, epoch: usize, make: impl FnOnce() -> Vec<u32>) -> Arc<[u32]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let order = Arc::clone(known.entry([source, epoch]).or_insert_with(|| make().into()));
        // Ranks are at most one step apart, so the epochs before the last one are over.
        known.retain(|[of_source, of_epoch], _| *of_source != source || of_epoch + 1 >= epoch);
        order
    }
}

/// Sequences of tokens by step.
#[derive(Debug)]
pub(crate) struct Loader<'a> {
    tokens: &'a Tokens,
    shape: BatchShape,
    order: Order,
    seed: u64,
    /// The step before which the run began, and the sequences that had been read by then.
    begins: [usize; 2],
    blend: Blend,
    /// The sequences of the step that was read last.
    samples: Option<(usize, Vec<Sample>)>,
    orders: Arc<EpochOrders>,
}

/// A sequence: how many of its source came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    source: usize,
    number: usize,
}

/// Tokens of a microbatch and those that follow each of them, `IGNORED` where these are of another document. Row: position ·
/// sequences + sequence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub inputs: Vec<u32>,
    pub targets: Vec<u32>,
}

/// A sequence and the token behind it.
#[derive(Debug)]
struct Row {
    tokens: Vec<u32>,
    /// Where documents begin, from 1 on.
    starts: Vec<usize>,
}

impl<'a> Loader<'a> {
    /// A run that goes on `begins` behind a step and some sequences.
    ///
    /// # Errors
    /// `Data` if the tokens do not suit; tokens of large files that no vocabulary has may show only in a batch.
    pub fn new(
        tokens: &'a Tokens,
        shape: BatchShape,
        (order, seed): (Order, u64),
        begins: [usize; 2],
        orders: Arc<EpochOrders>,
    ) -> Result<Self, RunError> {
        let sequence = shape.sequence;
        if let Some(short) = tokens.sources().iter().find(|source| source.count() <= sequence) {
            let count = short.count();
            return Err(RunError::Data(format!(
                "{count} tokens are fewer than one sequence of {sequence} and the token behind it"
            )));
        }
        let unknown = tokens.sources().iter().find(|source| source.documents.is_none());
        if let (true, Some(source)) = (shape.document_mask, unknown) {
            return Err(RunError::Data(format!(
                "{}: its documents are not known, so attention cannot be kept inside them: give .jsonl, .parquet, \
                 Megatron's index, or the token behind each document",
                source.name()
            )));
        }
        for block in tokens.sources().iter().flat_map(Source::samples) {
            check_vocabulary(&block?, shape.vocabulary)?;
        }
        if shape.document_mask {
            let mut has_target = false;
            for source in tokens.sources() {
                has_target |= source.has_successor(sequences(source, sequence) * sequence)?;
            }
            if !has_target {
                return Err(RunError::Data(format!(
                    "{}: no document has two tokens in a sequence of {sequence}, so with attention kept inside documents \
                     there is nothing to predict: give longer documents, or leave the mask out",
                    tokens.sources()[0].name()
                )));
            }
        }
        let blend = Blend::new(tokens.sources().iter().map(|source| source.weight).collect());
        Ok(Self { tokens, shape, order, seed, begins, blend, samples: None, orders })
    }

    /// Sequences until one is read again; of several sources, as many as they have together.
    pub fn sequences(&self) -> usize {
        self.tokens.sources().iter().map(|source| sequences(source, self.shape.sequence)).sum()
    }

    /// `count` sequences of a step (from 0), the `first` one on.
    ///
    /// # Errors
    /// `Data` if a file cannot be read, or has a token that is not in the vocabulary.
    pub fn batch(&mut self, step: usize, first: usize, count: usize) -> Result<Batch, Fault> {
        let BatchShape { sequence, vocabulary, document_mask, .. } = self.shape;
        let rows = self.read(step, first, count)?;
        for tokens in &rows {
            check_vocabulary(&tokens.tokens, vocabulary).map_err(|error| Fault::Data(error.to_string()))?;
        }
        let by_position = |of: &dyn Fn(&Row, usize) -> u32| -> Vec<u32> {
            (0..sequence).flat_map(|position| rows.iter().map(move |row| of(row, position))).collect()
        };
        let target = |row: &Row, position: usize| match document_mask && row.starts.contains(&(position + 1))
        {
            true => IGNORED,
            false => row.tokens[position + 1],
        };
        Ok(Batch {
            inputs: by_position(&|row, position| row.tokens[position]),
            targets: by_position(&target),
        })
    }

    /// The documents of sequences of a step, as `batch` counts them; `None` if they are not kept apart.
    ///
    /// # Errors
    /// `Data` if a file cannot be read.
    pub fn documents(
        &mut self,
        step: usize,
        first: usize,
        count: usize,
    ) -> Result<Option<PackedDocuments>, Fault> {
        if !self.shape.document_mask {
            return Ok(None);
        }
        let rows = self.read(step, first, count)?;
        Ok(Some(PackedDocuments::of(self.shape.sequence, rows.into_iter().map(|row| row.starts))))
    }

    /// The targets of a step that have a loss, over all ranks.
    ///
    /// # Errors
    /// `Data` if a file cannot be read.
    pub fn targets(&mut self, step: usize) -> Result<usize, Fault> {
        let BatchShape { sequence, global_batch, document_mask, .. } = self.shape;
        let all = sequence * global_batch;
        if !document_mask {
            return Ok(all);
        }
        let rows = self.read(step, 0, global_batch)?;
        Ok(all - rows.iter().map(|row| row.starts.len()).sum::<usize>())
    }

    /// Sequences of a step.
    fn read(&mut self, step: usize, first: usize, count: usize) -> Result<Vec<Row>, Fault> {
        let samples = self.samples(step)[first..first + count].to_vec();
        let read = |sample: Sample| {
            let (start, source) = (self.start(sample), &self.tokens.sources()[sample.source]);
            let tokens = source.read(start, self.shape.sequence + 1)?;
            let starts = source.document_starts(start, &tokens);
            Ok(Row { tokens, starts })
        };
        let read: Result<Vec<_>, RunError> = samples.into_iter().map(read).collect();
        read.map_err(|error| Fault::Data(error.to_string()))
    }

    /// What is dropped of a step's sequences (from 0) from one on.
    pub fn masks(&self, step: usize, first: usize) -> Masks {
        Masks::new(self.seed, step, first)
    }

    /// The sequences of a step.
    fn samples(&mut self, step: usize) -> &[Sample] {
        if self.samples.as_ref().is_none_or(|(known, _)| *known != step) {
            let [begins, read] = self.begins;
            let first = read + (step - begins) * self.shape.global_batch;
            self.blend.go_to(first);
            let samples = (0..self.shape.global_batch).map(|_| self.blend.next()).collect();
            self.samples = Some((step, samples));
        }
        &self.samples.as_ref().expect("it was just made").1
    }

    /// Where a sequence begins in its source: every epoch goes once through all of them.
    fn start(&self, Sample { source, number }: Sample) -> usize {
        let sequences = sequences(&self.tokens.sources()[source], self.shape.sequence);
        let (epoch, place) = (number / sequences, number % sequences);
        let place = match self.order {
            Order::Sequential => place,
            Order::Shuffled => {
                let make = || {
                    // The first source has the seed itself.
                    let seed = if source == 0 { self.seed } else { mix(self.seed ^ source as u64) };
                    Stream::new(seed, STREAM + 1 + epoch as u64).permutation(sequences)
                };
                self.orders.of(source, epoch, make)[place] as usize
            }
        };
        place * self.shape.sequence
    }
}

/// Whole sequences of a source, each with the token behind it.
fn sequences(source: &Source, sequence: usize) -> usize {
    (source.count() - 1) / sequence
}

fn check_vocabulary(tokens: &[u32], vocabulary: usize) -> Result<(), RunError> {
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        None => Ok(()),
        Some(token) => {
            Err(RunError::Data(format!("token {token} is not in the model's vocabulary of {vocabulary}")))
        }
    }
}

/// Which source the n-th sequence is of: the one that is furthest behind its share, the first of several.
///
/// After n sequences a source of weight w has n w / Σ w of them but for less than one, or for less than two of three or more sources.
/// Source: Megatron-LM, `build_blending_indices`.
#[derive(Debug)]
struct Blend {
    weights: Vec<f64>,
    /// How many of each source came before the next sequence.
    counts: Vec<usize>,
}

impl Blend {
    fn new(weights: Vec<f64>) -> Self {
        let sum: f64 = weights.iter().sum();
        let counts = vec![0; weights.len()];
        Self { weights: weights.iter().map(|weight| weight / sum).collect(), counts }
    }

    /// So that the n-th sequence is the next one.
    fn go_to(&mut self, number: usize) {
        if let [count] = &mut self.counts[..] {
            *count = number;
            return;
        }
        if self.counts.iter().sum::<usize>() > number {
            self.counts.fill(0);
        }
        for _ in self.counts.iter().sum()..number {
            self.next();
        }
    }

    fn next(&mut self) -> Sample {
        let number = self.counts.iter().sum::<usize>() + 1;
        let behind = |source: usize| number as f64 * self.weights[source] - self.counts[source] as f64;
        let sources = 1..self.counts.len();
        let source = sources.fold(0, |best, other| if behind(other) > behind(best) { other } else { best });
        let sample = Sample { source, number: self.counts[source] };
        self.counts[source] += 1;
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::super::documents::DocumentStarts;
    use super::super::tokenizer::Tokenizer;
    use super::*;

    fn loader(tokens: &Tokens, global_batch: usize, begins: [usize; 2]) -> Loader<'_> {
        let shape = BatchShape { sequence: 4, global_batch, vocabulary: 41, document_mask: false };
        Loader::new(tokens, shape, (Order::Shuffled, 1), begins, Arc::default()).unwrap()
    }

    #[test]
    fn an_epoch_has_every_sequence_once_and_parts_make_the_batch() {
        let tokens = Tokens::of((0..41).collect(), Tokenizer::None);
        let mut of_five = loader(&tokens, 5, [0, 0]);
        let mut seen: Vec<u32> = (0..2).flat_map(|step| of_five.batch(step, 0, 5).unwrap().inputs).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<u32>>());
        let all = of_five.batch(3, 0, 4).unwrap();
        assert!(all.inputs.iter().zip(&all.targets).all(|(input, target)| input + 1 == *target));
        // Rows of a position stand next to each other: sequences 2 and 3 are every third and fourth of four.
        let part = of_five.batch(3, 2, 2).unwrap();
        let expected: Vec<u32> = all.inputs.chunks(4).flat_map(|row| row[2..].to_vec()).collect();
        assert_eq!(part.inputs, expected);
        // Behind 3 steps of 5 sequences a run of 3 sequences a step goes on with the 16th.
        let mut other = loader(&tokens, 3, [3, 15]);
        assert_eq!(other.batch(4, 0, 2).unwrap(), of_five.batch(3, 3, 2).unwrap());
    }

    #[test]
    fn a_sequential_order_is_that_of_the_tokens() {
        let tokens = Tokens::of((0..41).collect(), Tokenizer::None);
        let shape = BatchShape { sequence: 4, global_batch: 2, vocabulary: 41, document_mask: false };
        let mut loader = Loader::new(&tokens, shape, (Order::Sequential, 1), [0, 0], Arc::default()).unwrap();
        assert_eq!(loader.sequences(), 10);
        assert_eq!(loader.batch(1, 0, 1).unwrap().inputs, [8, 9, 10, 11]);
        assert_eq!(loader.batch(5, 1, 1).unwrap().inputs, [4, 5, 6, 7], "the eleventh sequence is the first");
    }

    /// The source of each of the first sequences.
    fn blended(weights: &[f64], count: usize) -> String {
        let mut blend = Blend::new(weights.to_vec());
        (0..count).map(|_| char::from(b'a' + blend.next().source as u8)).collect()
    }

    #[test]
    fn sources_take_turns_by_their_weights() {
        assert_eq!(blended(&[1.0, 1.0], 6), "ababab");
        // Behind: a 0.75 n − a's, b 0.25 n − b's; at n = 2 both are ½ behind.
        assert_eq!(blended(&[3.0, 1.0], 8), "aabaaaba");
        assert_eq!(blended(&[0.0, 2.0], 3), "bbb");
        let many = blended(&[0.7, 0.2, 0.1], 1000);
        assert_eq!(['a', 'b', 'c'].map(|source| many.matches(source).count()), [700, 200, 100]);
    }

    #[test]
    fn several_sources_go_on_where_they_were() {
        let parts = [(0..21).collect(), (20..41).collect::<Vec<u32>>()];
        let sources = parts.map(|tokens| Tokens::of(tokens, Tokenizer::None).sources()[0].clone());
        let [first, mut second] = sources;
        second.weight = 7.0;
        let tokens = Tokens::new(vec![first, second], Tokenizer::None).unwrap();
        let mut whole = loader(&tokens, 4, [0, 0]);
        let steps: Vec<Batch> = (0..6).map(|step| whole.batch(step, 0, 4).unwrap()).collect();
        let of_second = steps[0].inputs.iter().filter(|token| **token >= 20).count();
        // Of weights 21 and 7: b is chosen once of four.
        assert_eq!(of_second, 4, "{:?}", steps[0]);
        let mut resumed = loader(&tokens, 4, [3, 12]);
        assert_eq!(resumed.batch(4, 0, 4).unwrap(), steps[4]);
        // A step that was read before comes again.
        assert_eq!(whole.batch(2, 1, 2).unwrap(), loader(&tokens, 4, [0, 0]).batch(2, 1, 2).unwrap());
    }

    /// Documents of 3, 4, 1 and 5 tokens, in sequences of 4: their rows, bounds and counted targets.
    #[test]
    fn documents_are_kept_apart() {
        let sources = [
            Source::of((0..13).collect()).with_documents(Some(DocumentStarts::Listed([3, 7, 8].into()))),
            // The same by the tokens that end documents; a half of it is held out.
            Source::of(vec![0, 1, 9, 3, 4, 5, 9, 9, 8, 9, 10, 11, 12])
                .with_documents(Some(DocumentStarts::Behind(9))),
        ];
        for (source, last) in sources.into_iter().zip([vec![[0, 4]; 4], vec![[0, 2], [0, 2], [2, 4], [2, 4]]])
        {
            let tokens = Tokens::new(vec![source], Tokenizer::None).unwrap();
            let shape = BatchShape { sequence: 4, global_batch: 1, vocabulary: 41, document_mask: true };
            let made =
                |tokens| Loader::new(tokens, shape, (Order::Sequential, 1), [0, 0], Arc::default()).unwrap();
            let mut loader = made(&tokens);
            let mut bounds = |step| loader.documents(step, 0, 1).unwrap().unwrap().view().bounds.to_vec();
            assert_eq!(bounds(0), [[0, 3], [0, 3], [0, 3], [3, 4]]);
            assert_eq!(bounds(1), [[0, 3], [0, 3], [0, 3], [3, 4]]);
            assert_eq!(bounds(2), last);
            let batch = loader.batch(1, 0, 1).unwrap();
            assert_eq!((batch.inputs.len(), batch.targets[2], batch.targets[3]), (4, IGNORED, IGNORED));
            assert_eq!(batch.targets[..2], batch.inputs[1..3]);
            assert_eq!([0, 1].map(|step| loader.targets(step).unwrap()), [3, 2]);
            let [_, behind] = tokens.hold_out(8.0 / 13.0).unwrap();
            // Tokens 5 to 12.
            let mut loader = made(&behind);
            let bounds = loader.documents(0, 0, 1).unwrap().unwrap().view().bounds.to_vec();
            assert_eq!(bounds, [[0, 2], [0, 2], [2, 3], [3, 4]]);
        }
    }

    #[test]
    fn unsuitable_tokens_are_refused() {
        let check = |tokens: &Tokens, vocabulary, expected: &str| {
            let shape = BatchShape { sequence: 4, global_batch: 1, vocabulary, document_mask: false };
            let made = Loader::new(tokens, shape, (Order::Shuffled, 0), [0, 0], Arc::default());
            let error = made.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&Tokens::of(vec![1; 4], Tokenizer::None), 10, "4 tokens are fewer");
        let unknown = Tokens::bytes(b"abcdefg");
        let shape = BatchShape { sequence: 4, global_batch: 1, vocabulary: 256, document_mask: true };
        let made = Loader::new(&unknown, shape, (Order::Shuffled, 0), [0, 0], Arc::default());
        assert!(made.unwrap_err().to_string().contains("its documents are not known"));
        for (documents, allowed) in [
            // All five tokens begin one; the last two are of one document; the same behind the last whole sequence.
            (DocumentStarts::Listed([1, 2, 3, 4, 5].into()), false),
            (DocumentStarts::Listed([1, 2, 3].into()), true),
            (DocumentStarts::Listed([1, 2, 3, 4].into()), false),
            (DocumentStarts::Behind(7), false),
            (DocumentStarts::Behind(8), true),
        ] {
            let source = Source::of(vec![7, 7, 7, 7, 7, 1]).with_documents(Some(documents.clone()));
            let tokens = Tokens::new(vec![source], Tokenizer::None).unwrap();
            let made = Loader::new(&tokens, shape, (Order::Shuffled, 0), [0, 0], Arc::default());
            let error = made.map_or_else(|error| error.to_string(), |_| String::new());
            assert_eq!(error.contains("there is nothing to predict"), !allowed, "{documents:?}: {error}");
        }
        check(&Tokens::bytes(b"abcdefg"), 97, "token 97 is not in the model's vocabulary of 97");
    }
}
