//! From text to tokens, by bytes or as a Hugging Face `tokenizer.json` says.

use crate::error::RunError;
use crate::random::mix;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The tokenizer of some tokens.
#[derive(Debug, Clone)]
pub(crate) enum Tokenizer {
    /// None: the tokens are synthetic.
    None,
    /// Each byte is one.
    Bytes,
    /// A `tokenizer.json`, whose content this is.
    HuggingFace(Arc<[u8]>),
}

impl Tokenizer {
    /// A name that no other tokenizer has.
    pub fn name(&self) -> String {
        match self {
            Tokenizer::None => "none".into(),
            Tokenizer::Bytes => "bytes".into(),
            Tokenizer::HuggingFace(file) => {
                format!("{:016x}", file.iter().fold(0, |hash, byte| mix(hash ^ u64::from(*byte))))
            }
        }
    }

    /// Its file, if it has one.
    pub fn file(&self) -> Option<&[u8]> {
        match self {
            Tokenizer::HuggingFace(file) => Some(file),
            _ => None,
        }
    }
}

/// The tokens of a text as a `tokenizer.json` makes them, without special ones around it, and that tokenizer.
///
/// # Errors
/// `Tokenizer` if the file cannot be read or is none, `Data` if the text is not UTF-8.
pub(super) fn encode(text: &[u8], tokenizer: &Path) -> Result<(Vec<u32>, Tokenizer), RunError> {
    let path = tokenizer.display();
    let bad = |reason: String| RunError::Tokenizer { path: path.to_string(), reason };
    let file = fs::read(tokenizer).map_err(|error| bad(error.to_string()))?;
    let known = tokenizers::Tokenizer::from_bytes(&file).map_err(|error| bad(error.to_string()))?;
    let text = std::str::from_utf8(text)
        .map_err(|error| RunError::Data(format!("a tokenizer reads UTF-8, and {error}")))?;
    let encoded = known.encode_fast(text, false).map_err(|error| bad(error.to_string()))?;
    Ok((encoded.get_ids().to_vec(), Tokenizer::HuggingFace(file.into())))
}
