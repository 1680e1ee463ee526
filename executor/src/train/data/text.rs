//! Texts become tokens once, piece by piece, in a file without a name: never is a whole text in memory.

use super::documents::DocumentStarts;
use super::source::{Source, Width, unreadable};
use super::tokenizer::Encoder;
use crate::error::RunError;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// A plain text is cut behind so many bytes, where that changes no token.
const PIECE: usize = 1 << 20;
/// A piece or a document is at most so long.
const LONGEST: usize = 64 << 20;

/// A line of a `.jsonl` file.
#[derive(Deserialize)]
struct Line {
    text: String,
}

/// The tokens of a plain text.
///
/// # Errors
/// `Data` if it cannot be read, is not UTF-8, or has no place to cut it.
pub(super) fn plain(path: &Path, encoder: &Encoder) -> Result<Source, RunError> {
    in_pieces(path, encoder, PIECE)
}

/// `plain` with pieces of about `size` bytes.
fn in_pieces(path: &Path, encoder: &Encoder, size: usize) -> Result<Source, RunError> {
    let mut writer = Writer::new(path)?;
    let mut file = BufReader::new(writer.open(path)?);
    let (mut piece, mut context, mut is_over) = (Vec::new(), Vec::new(), false);
    while !is_over {
        let wanted = size.max(piece.len()) as u64;
        let read = Read::take(&mut file, wanted).read_to_end(&mut piece);
        is_over = read.map_err(|error| unreadable(&writer.name, &error))? == 0;
        let end = if is_over { Some(piece.len()) } else { cut(&piece) };
        let Some(end) = end else {
            if piece.len() > LONGEST {
                let (name, longest) = (&writer.name, LONGEST >> 20);
                return Err(RunError::Data(format!(
                    "{name}: {longest} MiB without a line to cut the text at"
                )));
            }
            continue;
        };
        writer.add(&encoder.encode_behind(&context, &piece[..end])?)?;
        // The next piece is tokenized behind this one's last line.
        let line = piece[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |line| line + 1);
        context.clear();
        context.extend_from_slice(&piece[line..end]);
        piece.drain(..end);
    }
    writer.source()
}

/// The last place between a letter or digit and a line's end with another behind it: no tokenizer that splits words joins them.
fn cut(text: &[u8]) -> Option<usize> {
    let places = text.windows(3).rposition(|three| {
        matches!(three, [before, b'\n', behind] if before.is_ascii_alphanumeric() && behind.is_ascii_alphanumeric())
    });
    places.map(|place| place + 1)
}

/// The tokens of a file with a JSON object on each line, whose `text` is a document. Behind each document comes `end`, if given.
///
/// # Errors
/// `Data` with the line that is none such.
pub(super) fn json_lines(
    path: &Path,
    encoder: &Encoder,
    end: Option<u32>,
    documents: bool,
) -> Result<Source, RunError> {
    let mut writer = Writer::new(path)?.listing(documents);
    let mut file = BufReader::new(writer.open(path)?);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = Read::take(&mut file, LONGEST as u64).read_until(b'\n', &mut line);
        if read.map_err(|error| unreadable(&writer.name, &error))? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let bad = |reason: String| RunError::Data(format!("{}, line {number}: {reason}", path.display()));
        let Line { text } = serde_json::from_slice(&line).map_err(|error| bad(error.to_string()))?;
        writer.add_document(encoder.encode(text.as_bytes())?, end)?;
    }
    writer.source()
}

/// Writes tokens to a file that is gone with the program.
pub(super) struct Writer {
    out: BufWriter<File>,
    /// The text's, for messages.
    pub name: String,
    /// How many tokens were written.
    count: u64,
    /// Where documents begin, the first one left out; `None` if that is not wanted.
    starts: Option<Vec<u64>>,
}

impl Writer {
    pub fn new(text: &Path) -> Result<Self, RunError> {
        let file = tempfile::tempfile().map_err(|error| unwritable(&error))?;
        Ok(Self { out: BufWriter::new(file), name: text.display().to_string(), count: 0, starts: None })
    }

    /// Notes where documents begin, if wanted.
    pub fn listing(self, documents: bool) -> Self {
        Self { starts: documents.then(Vec::new), ..self }
    }

    pub fn open(&self, path: &Path) -> Result<File, RunError> {
        File::open(path).map_err(|error| unreadable(&self.name, &error))
    }

    /// Adds a document and the token behind it.
    pub fn add_document(&mut self, mut tokens: Vec<u32>, end: Option<u32>) -> Result<(), RunError> {
        tokens.extend(end);
        let (first, has_tokens) = (self.count, !tokens.is_empty());
        if let Some(starts) = self.starts.as_mut().filter(|_| first > 0 && has_tokens) {
            starts.push(first);
        }
        self.add(&tokens)
    }

    fn add(&mut self, tokens: &[u32]) -> Result<(), RunError> {
        self.count += tokens.len() as u64;
        let mut write = || tokens.iter().try_for_each(|token| self.out.write_all(&token.to_le_bytes()));
        write().map_err(|error| unwritable(&error))
    }

    pub fn source(self) -> Result<Source, RunError> {
        let file = self.out.into_inner().map_err(|error| unwritable(error.error()))?;
        let documents = self.starts.map(|starts| DocumentStarts::Listed(starts.into()));
        Ok(Source::in_file(file, self.name, Width::U32)?.with_documents(documents))
    }
}

fn unwritable(error: &io::Error) -> RunError {
    RunError::Data(format!("cannot write the tokens to a temporary file: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Words and everything between them: no token has parts of both.
    const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "quick": 2, "fox": 3}, "unk_token": "?"}}"#;

    fn encoder(folder: &Path) -> Encoder {
        fs::write(folder.join("tokenizer.json"), TOKENIZER).unwrap();
        Encoder::open(Some(&folder.join("tokenizer.json"))).unwrap()
    }

    fn tokens(source: Result<Source, RunError>) -> Vec<u32> {
        let source = source.unwrap();
        source.read(0, source.count()).unwrap()
    }

    #[test]
    fn a_text_is_cut_between_lines_of_words_only() {
        let check =
            |text: &str, expected: Option<usize>| assert_eq!(cut(text.as_bytes()), expected, "{text:?}");
        check("one\ntwo\nthree", Some(7));
        check("one\n\ntwo", None);
        check("one.\ntwo", None);
        check("one\n two", None);
        check("one\n", None);
        check("", None);
    }

    /// Characters, and a mark at the beginning of the text, as tokenizers in the manner of SentencePiece put it.
    const MARKING: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Prepend", "prepend": "^"}, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": "?", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": {"?": 0, "^": 1, "a": 2, "\n": 3, "€": 4, "b": 5, "ab": 6}, "merges": ["a b"]}}"#;

    /// Whatever stands at the place where a piece ends, the tokens are those of the whole text.
    #[test]
    fn pieces_of_a_long_text_have_the_tokens_of_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.txt");
        fs::write(folder.path().join("marking.json"), MARKING).unwrap();
        let words = encoder(folder.path());
        let marking = Encoder::open(Some(&folder.path().join("marking.json"))).unwrap();
        let check = |encoder: &Encoder, size: usize, text: &str| {
            fs::write(&path, text).unwrap();
            let made = tokens(in_pieces(&path, encoder, size));
            let expected = encoder.encode(text.as_bytes()).unwrap();
            let counts = (size, made.len(), expected.len());
            assert!(
                made == expected,
                "pieces of {}: {} tokens, the whole text has {}",
                counts.0,
                counts.1,
                counts.2
            );
        };
        // A piece's bytes end before and inside characters of 4 bytes, in lines and between them.
        let lines = "a quick fox\nquick 😀😀 fox\nfox 😀\n".repeat(20);
        (20..70).for_each(|size| check(&words, size, &lines));
        (20..40).for_each(|size| check(&marking, size, &"ab€a\nb€\na".repeat(50)));
        // A line that is longer than several pieces.
        check(&marking, 64, &format!("a\nb{}\na", "€ab".repeat(100)));
        // A piece of the size that runs use ends inside a character of 3 bytes.
        let block = "ab€a\nb€\n";
        let text = "a".repeat(PIECE % block.len() + 3) + &block.repeat(PIECE / block.len() + 5);
        assert!(!text.is_char_boundary(PIECE));
        check(&marking, PIECE, &text);
    }

    #[test]
    fn documents_are_lines_with_a_token_behind_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages.jsonl");
        let encoder = encoder(folder.path());
        fs::write(&path, "{\"text\": \"a fox\"}\n\n{\"id\": 1, \"text\": \"quick\\nfox\"}").unwrap();
        assert_eq!(tokens(json_lines(&path, &encoder, None, false)), [1, 3, 2, 3]);
        assert_eq!(tokens(json_lines(&path, &encoder, Some(9), true)), [1, 3, 9, 2, 3, 9]);
        let bytes = tokens(json_lines(&path, &Encoder::Bytes, Some(0), false));
        assert_eq!(
            bytes,
            [b"a fox\0" as &[u8], b"quick\nfox\0"].concat().into_iter().map(u32::from).collect::<Vec<_>>()
        );
        let starts = |end| {
            let source = json_lines(&path, &encoder, end, true).unwrap();
            source.document_starts(0, &vec![0; source.count()])
        };
        assert_eq!((starts(None), starts(Some(9))), (vec![2], vec![3]));
        // An empty document has no tokens, and so no beginning, but with a token behind it.
        fs::write(&path, "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": \"fox\"}").unwrap();
        assert_eq!((starts(None), starts(Some(9))), (vec![1], vec![2, 3]));
        let check = |text: &str, expected: &str| {
            fs::write(&path, text).unwrap();
            let error = json_lines(&path, &encoder, None, true).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("{\"text\": \"a\"}\n[1]\n", "pages.jsonl, line 2: ");
        check("{\"text\": 7}\n", "line 1: invalid type: integer `7`");
        check("{\"text\": \"a\"", "line 1: EOF");
    }
}
