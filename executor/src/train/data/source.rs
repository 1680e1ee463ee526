//! Where tokens are: in memory, or in a file of which only the tokens of a batch are read.

use super::documents::DocumentStarts;
use crate::error::RunError;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens in a row.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    store: Store,
    /// Its first token in the store.
    first: usize,
    count: usize,
    /// Its share of the sequences is this divided by the sum of all sources' weights.
    pub weight: f64,
    /// Where its documents begin, by the tokens' places in the store; `None` if that is not known or not wanted.
    pub documents: Option<DocumentStarts>,
}

#[derive(Debug, Clone)]
enum Store {
    Memory(Arc<[u32]>),
    File(Arc<TokenFile>),
}

/// A file of tokens and nothing else.
#[derive(Debug)]
struct TokenFile {
    file: Mutex<File>,
    /// For messages.
    name: String,
    width: Width,
}

/// How a file stores a token, with the lowest byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    U8,
    U16,
    U32,
    U64,
}

impl Width {
    pub fn bytes(self) -> usize {
        match self {
            Width::U8 => 1,
            Width::U16 => 2,
            Width::U32 => 4,
            Width::U64 => 8,
        }
    }

    /// Tokens of some bytes. A number that is too large for a token becomes the largest one, which no vocabulary has.
    fn tokens(self, bytes: &[u8]) -> Vec<u32> {
        match self {
            Width::U8 => bytes.iter().map(|byte| u32::from(*byte)).collect(),
            Width::U16 => {
                bytes.as_chunks().0.iter().map(|token| u32::from(u16::from_le_bytes(*token))).collect()
            }
            Width::U32 => bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).collect(),
            Width::U64 => {
                let tokens = bytes.as_chunks().0.iter().map(|token| u64::from_le_bytes(*token));
                tokens.map(|token| u32::try_from(token).unwrap_or(u32::MAX)).collect()
            }
        }
    }
}

/// The most blocks, and the tokens of each, that are read of a source to tell it from others.
const SAMPLES: usize = 1024;
const SAMPLE: usize = 4096;

impl Source {
    /// Tokens in memory.
    pub fn of(tokens: Vec<u32>) -> Self {
        let count = tokens.len();
        Self { store: Store::Memory(tokens.into()), first: 0, count, weight: count as f64, documents: None }
    }

    /// Tokens in a file that is open.
    pub fn in_file(file: File, name: String, width: Width) -> Result<Self, RunError> {
        let length = file.metadata().map_err(|error| unreadable(&name, &error))?.len() as usize;
        if !length.is_multiple_of(width.bytes()) {
            let width = width.bytes();
            return Err(RunError::Data(format!(
                "{name} has {length} bytes, no multiple of the {width} of a token"
            )));
        }
        let count = length / width.bytes();
        let store = Store::File(Arc::new(TokenFile { file: Mutex::new(file), name, width }));
        Ok(Self { store, first: 0, count, weight: count as f64, documents: None })
    }

    /// Tokens in the file of a path.
    pub fn open(path: &Path, width: Width) -> Result<Self, RunError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| unreadable(&name, &error))?;
        Self::in_file(file, name, width)
    }

    /// With its documents.
    pub fn with_documents(self, documents: Option<DocumentStarts>) -> Self {
        Self { documents, ..self }
    }

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        match &self.store {
            Store::Memory(_) => "these tokens",
            Store::File(file) => &file.name,
        }
    }

    /// Where documents begin among `tokens`, which were read from `first` on: places from 1.
    pub fn document_starts(&self, first: usize, tokens: &[u32]) -> Vec<usize> {
        self.documents.as_ref().map_or(Vec::new(), |documents| documents.among(self.first + first, tokens))
    }

    /// Whether one of its first `count` tokens stands before another one of its document; true if documents are not known. Of a
    /// long file with a token behind each document, what `samples` reads counts.
    ///
    /// # Errors
    /// `Data` if a file cannot be read.
    pub fn has_successor(&self, count: usize) -> Result<bool, RunError> {
        match &self.documents {
            None => Ok(true),
            Some(DocumentStarts::Listed(starts)) => {
                Ok(DocumentStarts::listed_behind(starts, self.first, count) < count)
            }
            Some(DocumentStarts::Behind(end)) => {
                let (first, _) = self.split_at(count);
                for block in first.samples() {
                    if block?.iter().any(|token| token != end) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Its first `count` tokens, and the others.
    pub fn split_at(&self, count: usize) -> (Self, Self) {
        let first = Self { count, ..self.clone() };
        let others = Self { first: self.first + count, count: self.count - count, ..self.clone() };
        (first, others)
    }

    /// `count` tokens from one on.
    ///
    /// # Errors
    /// `Data` if a file cannot be read.
    pub fn read(&self, first: usize, count: usize) -> Result<Vec<u32>, RunError> {
        let first = self.first + first;
        match &self.store {
            Store::Memory(tokens) => Ok(tokens[first..first + count].to_vec()),
            Store::File(of_tokens) => {
                let TokenFile { file, name, width } = &**of_tokens;
                let mut bytes = vec![0; count * width.bytes()];
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let mut read = || {
                    file.seek(SeekFrom::Start((first * width.bytes()) as u64))?;
                    file.read_exact(&mut bytes)
                };
                read().map_err(|error| unreadable(name, &error))?;
                Ok(width.tokens(&bytes))
            }
        }
    }

    /// Blocks of tokens spread evenly over the source: all of it if it has at most `SAMPLES` blocks.
    pub fn samples(&self) -> impl Iterator<Item = Result<Vec<u32>, RunError>> + '_ {
        let blocks = self.count.div_ceil(SAMPLE);
        let read = blocks.min(SAMPLES);
        (0..read).map(move |sample| {
            // Between the first and the last block, both included.
            let block = if blocks <= SAMPLES { sample } else { sample * (blocks - 1) / (read - 1) };
            let first = block * SAMPLE;
            self.read(first, SAMPLE.min(self.count - first))
        })
    }
}

/// `Data`: a file cannot be read.
pub(super) fn unreadable(name: &str, error: &io::Error) -> RunError {
    RunError::Data(format!("cannot read {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_of_any_width_has_the_tokens_of_memory() {
        let folder = tempfile::tempdir().unwrap();
        let tokens: Vec<u32> = (0..200).map(|number| number * 7 % 256).collect();
        let memory = Source::of(tokens.clone());
        for (width, bytes) in [(Width::U8, 1), (Width::U16, 2), (Width::U32, 4), (Width::U64, 8)] {
            let path = folder.path().join(format!("{bytes}"));
            let stored: Vec<u8> =
                tokens.iter().flat_map(|token| u64::from(*token).to_le_bytes()[..bytes].to_vec()).collect();
            fs::write(&path, &stored).unwrap();
            let file = Source::open(&path, width).unwrap();
            assert_eq!((file.count(), file.read(13, 50).unwrap()), (200, memory.read(13, 50).unwrap()));
            let (first, others) = file.split_at(150);
            assert_eq!((first.count(), others.count()), (150, 50));
            assert_eq!(others.read(3, 4).unwrap(), tokens[153..157]);
            if bytes > 1 {
                fs::write(&path, &stored[1..]).unwrap();
                let error = Source::open(&path, width).unwrap_err().to_string();
                assert!(error.contains(&format!("no multiple of the {bytes} of a token")), "{error}");
            }
        }
        assert_eq!(Width::U64.tokens(&u64::MAX.to_le_bytes()), [u32::MAX]);
        let error = Source::open(&folder.path().join("none"), Width::U16).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("none"), "{error}");
    }

    #[test]
    fn samples_are_all_of_a_short_source_and_the_ends_of_a_long_one() {
        let short: Vec<u32> = (0..10_000).collect();
        let all: Vec<u32> = Source::of(short.clone()).samples().flat_map(Result::unwrap).collect();
        assert_eq!(all, short);
        let count = SAMPLES * SAMPLE + SAMPLE + 1;
        let sampled: Vec<u32> =
            Source::of((0..count as u32).collect()).samples().flat_map(Result::unwrap).collect();
        assert_eq!(sampled.len(), (SAMPLES - 1) * SAMPLE + 1);
        assert_eq!((sampled[0], sampled.last()), (0, Some(&(count as u32 - 1))));
    }
}
