//! Parquet files whose column `text` has a document in each row. Row groups are read one by one and their column page by page:
//! never is a whole file in memory.

use super::source::Source;
use super::text::Writer;
use super::tokenizer::Encoder;
use crate::error::RunError;
use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Once;

/// The column with the documents.
const COLUMN: &str = "text";
/// Documents that are in memory at once.
const DOCUMENTS: usize = 64;

/// The tokens of a file. Behind each document comes `end`, if given; `documents` is whether their beginnings are kept. A row
/// without a text is no document.
///
/// # Errors
/// `Data` if the file cannot be read, is no Parquet or has no such column of strings.
pub(super) fn open(
    path: &Path,
    encoder: &Encoder,
    end: Option<u32>,
    documents: bool,
) -> Result<Source, RunError> {
    let damaged = |what: String| RunError::Data(format!("{}: it is damaged: {what}", path.display()));
    catch_panics(|| read(path, encoder, end, documents)).map_err(damaged)?
}

/// The result of `work`, or what a panic in it says: the library panics on some damaged files. No message is printed.
fn catch_panics<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    thread_local!(static IS_SILENT: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            if !IS_SILENT.get() {
                hook(panicked);
            }
        }));
    });
    IS_SILENT.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    IS_SILENT.set(false);
    result.map_err(|panicked| {
        let text = panicked.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panicked.downcast_ref::<String>().cloned()).unwrap_or_default();
        text.lines().next().unwrap_or("it cannot be read").to_string()
    })
}

/// `open`; panics on some damaged files.
fn read(path: &Path, encoder: &Encoder, end: Option<u32>, documents: bool) -> Result<Source, RunError> {
    let mut writer = Writer::new(path)?.listing(documents);
    let name = writer.name.clone();
    let bad = |reason: &str| RunError::Data(format!("{name}: {reason}"));
    // Some of the library's messages have several lines.
    let failed = |error: ParquetError| bad(error.to_string().lines().next().unwrap_or("it cannot be read"));
    let file = SerializedFileReader::new(writer.open(path)?).map_err(failed)?;
    let schema = file.metadata().file_metadata().schema_descr_ptr();
    let column = schema.columns().iter().position(|column| column.path().string() == COLUMN);
    let Some(column) = column else {
        let names: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
        return Err(bad(&format!("there is no column `{COLUMN}` but {}", names.join(", "))));
    };
    let described = schema.column(column);
    if described.physical_type() != Type::BYTE_ARRAY || described.max_rep_level() > 0 {
        return Err(bad(&format!("its column `{COLUMN}` is not of strings")));
    }
    for group in 0..file.num_row_groups() {
        let group = file.get_row_group(group).map_err(failed)?;
        let ColumnReader::ByteArrayColumnReader(mut reader) =
            group.get_column_reader(column).map_err(failed)?
        else {
            return Err(bad(&format!("its column `{COLUMN}` is not of strings")));
        };
        let (mut levels, mut texts) = (Vec::new(), Vec::<ByteArray>::new());
        loop {
            levels.clear();
            texts.clear();
            let read = reader.read_records(DOCUMENTS, Some(&mut levels), None, &mut texts);
            if read.map_err(failed)?.0 == 0 {
                break;
            }
            for text in &texts {
                writer.add_document(encoder.encode(text.data())?, end)?;
            }
        }
    }
    writer.source()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::basic::Compression;
    use parquet::data_type::{ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::fs::{self, File};
    use std::sync::Arc;

    /// A file of row groups of an identifier and an optional text.
    fn write(path: &Path, compression: Compression, groups: &[&[Option<&str>]]) {
        let schema = "message pages { required int64 id; optional binary text (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = WriterProperties::builder().set_compression(compression).build();
        let file = File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
        for rows in groups {
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let ids: Vec<i64> = (0..rows.len() as i64).collect();
            column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let texts: Vec<ByteArray> = rows.iter().flatten().map(|text| ByteArray::from(*text)).collect();
            let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
            column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn rows_are_documents_in_every_compression() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages.parquet");
        // More rows than are read at once, over two row groups, with a missing text and an empty one.
        let many: Vec<String> = (0..150).map(|row| format!("Dokument ä {row}.")).collect();
        let first: Vec<Option<&str>> = many.iter().map(|text| Some(text.as_str())).collect();
        let second = [Some("b"), None, Some(""), Some("last")];
        let compressions = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::ZSTD(Default::default()),
        ];
        for compression in compressions {
            write(&path, compression, &[&first, &second]);
            let all = |end: Option<u32>| {
                let source = open(&path, &Encoder::Bytes, end, true).unwrap();
                let tokens = source.read(0, source.count()).unwrap();
                let starts = source.document_starts(0, &tokens);
                (tokens, starts)
            };
            let (tokens, starts) = all(None);
            assert_eq!(tokens, bytes(&(many.concat() + "blast")), "{compression:?}");
            assert_eq!(starts.len(), 151);
            let (tokens, starts) = all(Some(0));
            assert_eq!(tokens, bytes(&(many.join("\0") + "\0b\0\0last\0")), "{compression:?}");
            let begins = |start: &usize| tokens[start - 1] == 0;
            assert!(starts.len() == 152 && starts.iter().all(begins), "{starts:?}");
        }
    }

    #[test]
    fn what_is_no_parquet_of_texts_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages.parquet");
        let check = |expected: &str| {
            let error = open(&path, &Encoder::Bytes, None, false).unwrap_err().to_string();
            assert!(error.contains("pages.parquet") && error.contains(expected), "{error}");
            assert!(!error.contains('\n'), "{error}");
        };
        check("cannot read");
        fs::write(&path, "not a Parquet file at all").unwrap();
        check("");
        fs::write(&path, "").unwrap();
        check("");
        write(&path, Compression::SNAPPY, &[&[Some("a text"), Some("another")]]);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        check("");
        let schema = "message pages { required int64 text; required binary body (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = |schema| {
            let file = File::create(&path).unwrap();
            SerializedFileWriter::new(file, schema, Default::default()).unwrap().close().unwrap();
        };
        file(schema);
        check("its column `text` is not of strings");
        file(Arc::new(parse_message_type("message pages { required binary body (UTF8); }").unwrap()));
        check("there is no column `text` but body");
    }

    /// Every byte of a small file is changed once: the file is read or refused, and nothing panics.
    #[test]
    fn damaged_files_do_not_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages.parquet");
        write(&path, Compression::SNAPPY, &[&[Some("a text"), None, Some("another")]]);
        let whole = fs::read(&path).unwrap();
        let (mut refused, mut lines) = (0, 0);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            fs::write(&path, damaged).unwrap();
            let error = open(&path, &Encoder::Bytes, None, true).err().map(|error| error.to_string());
            refused += usize::from(error.is_some());
            lines += error.map_or(0, |error| error.lines().count());
        }
        assert!(refused > whole.len() / 4 && lines == refused, "{refused} of {}, {lines} lines", whole.len());
    }
}
