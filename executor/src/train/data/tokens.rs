//! What is trained on: tokens of one or several sources, and who made them.

use super::format::DataFormat;
use super::source::Source;
use super::tokenizer::{Encoder, Tokenizer};
use crate::error::RunError;
use crate::random::{Stream, mix};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::path::Path;
use std::sync::Arc;

/// Tokens, and who made them. Those of files stay there: only a batch's are in memory.
#[derive(Debug, Clone)]
pub struct Tokens {
    sources: Arc<[Source]>,
    tokenizer: Tokenizer,
    /// Tells them from others, by all tokens or by samples of large sources.
    fingerprint: String,
    /// Distinguishes the beginnings of documents, where they are known.
    documents: Option<String>,
}

/// A file with data.
#[derive(Debug, Clone, Copy)]
pub struct DataFile<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Its format; if `None`, what its name says.
    pub format: Option<DataFormat>,
    /// Its share of the sequences, in relation to other files; if `None`, its number of tokens.
    pub weight: Option<f64>,
}

/// How files become tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct DataOptions<'a> {
    /// The `tokenizer.json` that cuts texts; if `None`, each byte is a token.
    pub tokenizer: Option<&'a Path>,
    /// The token behind each document, as its text or its number: it is put behind those of texts, and divides the tokens of
    /// `.u16` and `.u32` into documents.
    pub end_of_document: Option<&'a str>,
    /// Whether it is to be known where documents begin: for `Settings::document_mask`. Takes 8 bytes for each document.
    pub documents: bool,
}

impl Tokens {
    /// The tokens of files.
    ///
    /// # Errors
    /// `Data` if a file cannot be read or is not of its format, `Tokenizer` if the tokenizer cannot be used.
    pub fn open(files: &[DataFile], options: &DataOptions) -> Result<Self, RunError> {
        let DataOptions { tokenizer, end_of_document, documents } = *options;
        let encoder = Encoder::open(tokenizer)?;
        let end = end_of_document.map(|end| encoder.token(end)).transpose()?;
        let mut sources = Vec::new();
        let mut has_text = false;
        for file in files {
            let format = file.format.map_or_else(|| DataFormat::of_path(file.path), Ok)?;
            has_text |= format.is_text();
            let mut source = format.open(file.path, &encoder, end, documents)?;
            source.weight = file.weight.unwrap_or(source.weight);
            sources.push(source);
        }
        // Files of tokens do not say whose they are: a tokenizer that is given is theirs.
        let is_known = has_text || tokenizer.is_some();
        Self::new(sources, if is_known { encoder.tokenizer() } else { Tokenizer::None })
    }

    /// A text, each byte a token.
    pub fn bytes(text: &[u8]) -> Self {
        Self::of(text.iter().map(|byte| u32::from(*byte)).collect(), Tokenizer::Bytes)
    }

    /// A text in the tokens of a `tokenizer.json`, without special ones around it.
    ///
    /// # Errors
    /// `Tokenizer` if the file cannot be read or is none, `Data` if the text is not UTF-8.
    pub fn tokenized(text: &[u8], tokenizer: &Path) -> Result<Self, RunError> {
        let encoder = Encoder::open(Some(tokenizer))?;
        Ok(Self::of(encoder.encode(text)?, encoder.tokenizer()))
    }

    /// The numbers that a tokenizer gave a text.
    pub(crate) fn of(numbers: Vec<u32>, tokenizer: Tokenizer) -> Self {
        Self::new(vec![Source::of(numbers)], tokenizer).expect("what is in memory can be read")
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
        Self::of((0..count as u64).map(next).collect(), Tokenizer::None)
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.sources.iter().map(Source::count).sum()
    }

    /// The first part of each source, and a held-out fraction at its end.
    ///
    /// # Errors
    /// `Data` if a file cannot be read.
    ///
    /// # Panics
    /// If the fraction is not between 0 and 1.
    pub fn hold_out(&self, fraction: f64) -> Result<[Self; 2], RunError> {
        assert!((0.0..=1.0).contains(&fraction), "{fraction} is a fraction");
        let split = |source: &Source| {
            let held_out = (source.count() as f64 * fraction).round() as usize;
            source.split_at(source.count() - held_out)
        };
        let (training, held_out) = self.sources.iter().map(split).unzip();
        let tokenizer = || self.tokenizer.clone();
        Ok([Self::new(training, tokenizer())?, Self::new(held_out, tokenizer())?])
    }

    /// Tokens of several sources.
    pub(crate) fn new(sources: Vec<Source>, tokenizer: Tokenizer) -> Result<Self, RunError> {
        let mut hash = 0;
        for source in &sources {
            if sources.len() > 1 {
                hash = mix(mix(hash ^ source.count() as u64) ^ source.weight.to_bits());
            }
            for block in source.samples() {
                hash = block?.iter().fold(hash, |hash, token| mix(hash ^ u64::from(*token)));
            }
        }
        let starts: Option<Vec<u64>> =
            sources.iter().map(|source| Some(source.documents.as_ref()?.fingerprint())).collect();
        let documents =
            starts.map(|starts| starts.into_iter().fold(0, |hash, of_source| mix(hash ^ of_source)));
        let name = |hash: u64| format!("{hash:016x}");
        Ok(Self {
            sources: sources.into(),
            tokenizer,
            fingerprint: name(hash),
            documents: documents.map(name),
        })
    }

    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Who made them.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tells them from others.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// What tells them from others.
impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Tokens", 4)?;
        fields.serialize_field("tokens", &self.count())?;
        fields.serialize_field("fingerprint", &self.fingerprint)?;
        fields.serialize_field("documents", &self.documents)?;
        fields.serialize_field("tokenizer", &self.tokenizer.name())?;
        fields.end()
    }
}

impl PartialEq for Tokens {
    fn eq(&self, other: &Self) -> bool {
        self.count() == other.count()
            && self.fingerprint == other.fingerprint
            && self.documents == other.documents
    }
}

/// Distinguishes the numbers that are drawn for data from those of weights.
pub(super) const STREAM: u64 = 1 << 62;
