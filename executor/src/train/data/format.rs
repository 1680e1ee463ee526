//! The formats of data files.

use super::documents::DocumentStarts;
#[cfg(feature = "parquet")]
use super::parquet;
use super::source::{Source, Width};
use super::tokenizer::Encoder;
use super::{megatron, text};
use crate::error::RunError;
use std::path::Path;

/// A format of data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataFormat {
    /// A text.
    Text,
    /// A JSON object on each line, whose `text` is a document.
    JsonLines,
    /// Parquet with a column `text`, whose rows are documents; read with the feature `parquet`.
    Parquet,
    /// Megatron's `.bin` with an `.idx` beside it.
    Megatron,
    /// Tokens of 16 bits, the lower byte first.
    U16,
    /// Tokens of 32 bits, the lowest byte first.
    U32,
}

/// The formats.
pub const DATA_FORMATS: [DataFormat; 6] = [
    DataFormat::Text,
    DataFormat::JsonLines,
    DataFormat::Parquet,
    DataFormat::Megatron,
    DataFormat::U16,
    DataFormat::U32,
];

impl DataFormat {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            DataFormat::Text => "text",
            DataFormat::JsonLines => "jsonl",
            DataFormat::Parquet => "parquet",
            DataFormat::Megatron => "megatron",
            DataFormat::U16 => "u16",
            DataFormat::U32 => "u32",
        }
    }

    /// What a file's name says.
    ///
    /// # Errors
    /// `Data` if it says nothing.
    pub(super) fn of_path(path: &Path) -> Result<Self, RunError> {
        let ending = path.extension().and_then(|ending| ending.to_str());
        let has_index = || megatron::paths(path).iter().all(|path| path.is_file());
        match ending {
            Some("jsonl") => Ok(DataFormat::JsonLines),
            Some("u16") => Ok(DataFormat::U16),
            Some("u32") => Ok(DataFormat::U32),
            Some("idx") => Ok(DataFormat::Megatron),
            Some("bin") if has_index() => Ok(DataFormat::Megatron),
            Some("bin") => Err(RunError::Data(format!(
                "{}: there is no .idx beside it: say how wide its tokens are, by --data-format u16 or u32",
                path.display()
            ))),
            Some("parquet") => Ok(DataFormat::Parquet),
            _ if !path.exists() && has_index() => Ok(DataFormat::Megatron),
            _ => Ok(DataFormat::Text),
        }
    }

    /// Whether a tokenizer makes its tokens.
    pub(super) fn is_text(self) -> bool {
        matches!(self, DataFormat::Text | DataFormat::JsonLines | DataFormat::Parquet)
    }

    /// The tokens of a file; `end` is that behind each document, `documents` whether their beginnings are kept.
    pub(super) fn open(
        self,
        path: &Path,
        encoder: &Encoder,
        end: Option<u32>,
        documents: bool,
    ) -> Result<Source, RunError> {
        let file = |width, starts: Option<DocumentStarts>| {
            Ok(Source::open(path, width)?.with_documents(starts.filter(|_| documents)))
        };
        let one = || Some(DocumentStarts::Listed([].into()));
        match (self, encoder) {
            (DataFormat::Text, Encoder::Bytes) => file(Width::U8, one()),
            (DataFormat::Text, _) => {
                Ok(text::plain(path, encoder)?.with_documents(one().filter(|_| documents)))
            }
            (DataFormat::JsonLines, _) => text::json_lines(path, encoder, end, documents),
            #[cfg(feature = "parquet")]
            (DataFormat::Parquet, _) => parquet::open(path, encoder, end, documents),
            #[cfg(not(feature = "parquet"))]
            (DataFormat::Parquet, _) => Err(RunError::Data(format!(
                "{}: this program does not read Parquet: build it with --features parquet, or write the text as .jsonl",
                path.display()
            ))),
            (DataFormat::Megatron, _) => megatron::open(path, documents),
            (DataFormat::U16, _) => file(Width::U16, end.map(DocumentStarts::Behind)),
            (DataFormat::U32, _) => file(Width::U32, end.map(DocumentStarts::Behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_name_says_the_format() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["book.txt", "README", "a.jsonl", "a.u16", "a.u32", "a.bin", "set.bin", "set.idx", "t.parquet"]
        {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let of = |name: &str| DataFormat::of_path(&folder.path().join(name));
        let check = |name: &str, expected: DataFormat| assert_eq!(of(name), Ok(expected), "{name}");
        check("book.txt", DataFormat::Text);
        check("README", DataFormat::Text);
        check("a.jsonl", DataFormat::JsonLines);
        check("a.u16", DataFormat::U16);
        check("a.u32", DataFormat::U32);
        check("set.bin", DataFormat::Megatron);
        check("set.idx", DataFormat::Megatron);
        // Megatron's own arguments leave the ending out.
        check("set", DataFormat::Megatron);
        check("missing", DataFormat::Text);
        check("t.parquet", DataFormat::Parquet);
        let error = of("a.bin").unwrap_err().to_string();
        assert!(error.contains("no .idx beside it"), "{error}");
    }

    #[test]
    fn names_are_unique_and_texts_alone_need_a_tokenizer() {
        let names = DATA_FORMATS.map(DataFormat::name);
        assert_eq!(names, ["text", "jsonl", "parquet", "megatron", "u16", "u32"]);
        assert_eq!(DATA_FORMATS.map(DataFormat::is_text), [true, true, true, false, false, false]);
    }
}
