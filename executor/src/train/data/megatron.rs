//! Megatron's indexed datasets: a `.bin` of tokens and an `.idx` that says their type and the lengths of the sequences.
//!
//! ```text
//! .idx  "MMIDIDX\0\0" | version 1 (u64) | type (u8) | sequences n (u64) | documents (u64) | n lengths (i32) | …
//! .bin  the tokens of sequence 0, of sequence 1, …
//! ```
//!
//! Source: Megatron-LM, `megatron/core/datasets/indexed_dataset.py`.

use super::documents::DocumentStarts;
use super::source::{Source, Width, unreadable};
use crate::error::RunError;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";

/// The paths of the index and of the tokens that a path means: one of both, or the path without the ending.
pub(super) fn paths(path: &Path) -> [PathBuf; 2] {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let stem = if matches!(ending, Some("bin" | "idx")) { path.with_extension("") } else { path.into() };
    ["idx", "bin"].map(|ending| {
        let mut name = stem.clone().into_os_string();
        name.push(".");
        name.push(ending);
        name.into()
    })
}

/// The tokens of a dataset, one document behind the other; `documents` is whether their beginnings are kept.
///
/// # Errors
/// `Data` if a file cannot be read or is none such.
pub(super) fn open(path: &Path, documents: bool) -> Result<Source, RunError> {
    let [index, tokens] = paths(path);
    let name = index.display().to_string();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => RunError::Data(format!("{name} is cut off")),
        _ => unreadable(&name, &error),
    };
    let mut file = BufReader::new(File::open(&index).map_err(failed)?);
    let bad = |what: String| RunError::Data(format!("{name} is not an index of Megatron: {what}"));
    let magic: [u8; 9] = next(&mut file).map_err(failed)?;
    let version = u64::from_le_bytes(next(&mut file).map_err(failed)?);
    if &magic != MAGIC || version != 1 {
        return Err(bad("it does not begin with MMIDIDX and version 1".into()));
    }
    let [code] = next(&mut file).map_err(failed)?;
    // Of `DType`. Tokens are never negative, so signed and unsigned numbers are the same.
    let width = match code {
        1 | 2 => Width::U8,
        3 | 8 => Width::U16,
        4 => Width::U32,
        5 => Width::U64,
        other => return Err(bad(format!("its type of number is {other}; there are 1 to 5 and 8"))),
    };
    let sequences = u64::from_le_bytes(next(&mut file).map_err(failed)?);
    let listed = u64::from_le_bytes(next(&mut file).map_err(failed)?);
    let mut expected = 0;
    let mut firsts = Vec::new();
    for _ in 0..sequences {
        let length = i32::from_le_bytes(next(&mut file).map_err(failed)?);
        if documents {
            firsts.push(expected);
        }
        expected += u64::try_from(length).map_err(|_| bad(format!("a sequence has {length} tokens")))?;
    }
    let source = Source::open(&tokens, width)?;
    if source.count() as u64 != expected {
        let (count, path) = (source.count(), tokens.display());
        return Err(RunError::Data(format!("{path} has {count} tokens, its index says {expected}")));
    }
    if !documents {
        return Ok(source);
    }
    // Behind the lengths come the sequences' places in bytes, then the first sequence of each document and their number.
    for _ in 0..sequences {
        let _: [u8; 8] = next(&mut file).map_err(failed)?;
    }
    firsts.push(expected);
    let mut starts: Vec<u64> = Vec::new();
    let mut last = 0;
    for _ in 0..listed {
        let sequence = u64::from_le_bytes(next(&mut file).map_err(failed)?);
        let first = usize::try_from(sequence).ok().and_then(|sequence| firsts.get(sequence));
        let first = *first.filter(|first| **first >= last).ok_or_else(|| {
            bad(format!(
                "a document begins with sequence {sequence} of {sequences}, or before the one in front of it"
            ))
        })?;
        if first > last && first < expected {
            starts.push(first);
        }
        last = first;
    }
    Ok(source.with_documents(Some(DocumentStarts::Listed(starts.into()))))
}

fn next<const N: usize>(file: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Two documents of 3 and 2 tokens of 16 bits, as Megatron writes them.
    fn index() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(1u64.to_le_bytes());
        bytes.push(8);
        [2u64, 3].iter().for_each(|count| bytes.extend(count.to_le_bytes()));
        [3i32, 2].iter().for_each(|length| bytes.extend(length.to_le_bytes()));
        [0i64, 6, 0, 1, 2].iter().for_each(|pointer| bytes.extend(pointer.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_dataset_is_read_by_any_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let tokens: Vec<u8> = [5u16, 6, 7, 60_000, 1].iter().flat_map(|token| token.to_le_bytes()).collect();
        fs::write(path("text.v1_document.bin"), &tokens).unwrap();
        fs::write(path("text.v1_document.idx"), index()).unwrap();
        for name in ["text.v1_document", "text.v1_document.bin", "text.v1_document.idx"] {
            let source = open(&path(name), false).unwrap();
            assert_eq!(source.read(0, source.count()).unwrap(), [5, 6, 7, 60_000, 1], "{name}");
        }
        let check = |index: &[u8], expected: &str| {
            fs::write(path("text.v1_document.idx"), index).unwrap();
            let error = open(&path("text.v1_document"), true).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let with = |at: usize, byte: u8| {
            let mut bytes = index();
            bytes[at] = byte;
            bytes
        };
        check(&index()[..40], "is cut off");
        check(&with(0, b'X'), "does not begin with MMIDIDX");
        check(&with(17, 6), "its type of number is 6");
        check(&with(34, 4), "has 5 tokens, its index says 6");
        check(&with(37, 0xFF), "a sequence has -");
        fs::write(path("text.v1_document.idx"), index()).unwrap();
        let source = open(&path("text.v1_document"), true).unwrap();
        assert_eq!(source.document_starts(0, &[0; 5]), [3]);
        // The second document begins with sequence 3 of 2; the first behind the second.
        check(&with(66, 3), "a document begins with sequence 3 of 2");
        check(&with(58, 2), "before the one in front of it");
        check(&index()[..60], "is cut off");
        fs::remove_file(path("text.v1_document.bin")).unwrap();
        check(&index(), "cannot read");
    }
}
