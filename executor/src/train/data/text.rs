//! Texts become tokens once, piece by piece, in a file without a name: never is a whole text in memory.

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
    let mut writer = Writer::new(path)?;
    let mut file = BufReader::new(writer.open(path)?);
    let (mut piece, mut is_over) = (Vec::new(), false);
    while !is_over {
        let wanted = (PIECE as u64).max(piece.len() as u64);
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
        writer.add(&encoder.encode(&piece[..end])?)?;
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
pub(super) fn json_lines(path: &Path, encoder: &Encoder, end: Option<u32>) -> Result<Source, RunError> {
    let mut writer = Writer::new(path)?;
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
        let mut tokens = encoder.encode(text.as_bytes())?;
        tokens.extend(end);
        writer.add(&tokens)?;
    }
    writer.source()
}

/// Writes tokens to a file that is gone with the program.
struct Writer {
    out: BufWriter<File>,
    /// The text's, for messages.
    name: String,
}

impl Writer {
    fn new(text: &Path) -> Result<Self, RunError> {
        let file = tempfile::tempfile().map_err(|error| unwritable(&error))?;
        Ok(Self { out: BufWriter::new(file), name: text.display().to_string() })
    }

    fn open(&self, path: &Path) -> Result<File, RunError> {
        File::open(path).map_err(|error| unreadable(&self.name, &error))
    }

    fn add(&mut self, tokens: &[u32]) -> Result<(), RunError> {
        let mut write = || tokens.iter().try_for_each(|token| self.out.write_all(&token.to_le_bytes()));
        write().map_err(|error| unwritable(&error))
    }

    fn source(self) -> Result<Source, RunError> {
        let file = self.out.into_inner().map_err(|error| unwritable(error.error()))?;
        Source::in_file(file, self.name, Width::U32)
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

    #[test]
    fn documents_are_lines_with_a_token_behind_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages.jsonl");
        let encoder = encoder(folder.path());
        fs::write(&path, "{\"text\": \"a fox\"}\n\n{\"id\": 1, \"text\": \"quick\\nfox\"}").unwrap();
        assert_eq!(tokens(json_lines(&path, &encoder, None)), [1, 3, 2, 3]);
        assert_eq!(tokens(json_lines(&path, &encoder, Some(9))), [1, 3, 9, 2, 3, 9]);
        let bytes = tokens(json_lines(&path, &Encoder::Bytes, Some(0)));
        assert_eq!(
            bytes,
            [b"a fox\0" as &[u8], b"quick\nfox\0"].concat().into_iter().map(u32::from).collect::<Vec<_>>()
        );
        let check = |text: &str, expected: &str| {
            fs::write(&path, text).unwrap();
            let error = json_lines(&path, &encoder, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("{\"text\": \"a\"}\n[1]\n", "pages.jsonl, line 2: ");
        check("{\"text\": 7}\n", "line 1: invalid type: integer `7`");
        check("{\"text\": \"a\"", "line 1: EOF");
    }
}
