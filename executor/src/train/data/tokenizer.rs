//! From text to tokens, by bytes or as a Hugging Face `tokenizer.json` says.

use crate::contained::contained;
use crate::error::RunError;
use crate::random::mix;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The tokenizer of some tokens.
#[derive(Debug, Clone)]
pub(crate) enum Tokenizer {
    /// None: the tokens are synthetic, or their files do not say whose they are.
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

/// A tokenizer that is ready to cut texts.
pub(crate) enum Encoder {
    Bytes,
    HuggingFace { known: Box<tokenizers::Tokenizer>, file: Arc<[u8]>, path: String },
}

impl Encoder {
    /// That of a `tokenizer.json`; without one each byte is a token.
    ///
    /// # Errors
    /// `Tokenizer` if the file cannot be read or is none.
    pub fn open(path: Option<&Path>) -> Result<Self, RunError> {
        let Some(path) = path else { return Ok(Self::Bytes) };
        let path = path.display().to_string();
        let bad = |reason: String| RunError::Tokenizer { path: path.clone(), reason };
        let file = fs::read(&path).map_err(|error| bad(error.to_string()))?;
        let known = checked(&file).map_err(bad)?;
        Ok(Self::HuggingFace { known: Box::new(known), file: file.into(), path })
    }

    /// The tokens of a text, without special ones around it.
    ///
    /// # Errors
    /// `Data` if the text is not UTF-8 and must be, `Tokenizer` if it cannot be cut.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>, RunError> {
        match self {
            Self::Bytes => Ok(text.iter().map(|byte| u32::from(*byte)).collect()),
            Self::HuggingFace { known, path, .. } => {
                let text = utf8(text)?;
                let bad = |reason: String| RunError::Tokenizer { path: path.clone(), reason };
                let encoded = contained(|| known.encode_fast(text, false)).map_err(bad)?;
                let encoded = encoded.map_err(|error| bad(error.to_string()))?;
                Ok(encoded.get_ids().to_vec())
            }
        }
    }

    /// The tokens of a text that continues a `context`, whose tokens are left out. So a tokenizer that does something at the
    /// beginning of a text, as those of LLaMA 2 put a space there, does it at the whole text's beginning only.
    ///
    /// # Errors
    /// As `encode`; `Data` if a token has parts of both.
    pub fn encode_behind(&self, context: &[u8], text: &[u8]) -> Result<Vec<u32>, RunError> {
        let Self::HuggingFace { known, path, .. } = self else { return self.encode(text) };
        if context.is_empty() {
            return self.encode(text);
        }
        let both = [context, text].concat();
        let both = utf8(&both)?;
        let bad = |reason: String| RunError::Tokenizer { path: path.clone(), reason };
        let encoded = contained(|| known.encode(both, false)).map_err(bad)?;
        let encoded = encoded.map_err(|error| bad(error.to_string()))?;
        let offsets = encoded.get_offsets();
        let first = offsets.partition_point(|(start, _)| *start < context.len());
        if offsets[..first].iter().any(|(_, end)| *end > context.len()) {
            return Err(RunError::Data("a token reaches over a line's end, where a long text is cut".into()));
        }
        Ok(encoded.get_ids()[first..].to_vec())
    }

    /// That which made some tokens; `None` if they do not say.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        match tokenizer {
            Tokenizer::None => None,
            Tokenizer::Bytes => Some(Self::Bytes),
            Tokenizer::HuggingFace(file) => {
                let known = checked(file).expect("it has made tokens");
                let path = "tokenizer.json".into();
                Some(Self::HuggingFace { known: Box::new(known), file: Arc::clone(file), path })
            }
        }
    }

    /// The text of tokens. Bytes that are no UTF-8 become U+FFFD, and tokens that the tokenizer has not are left out.
    ///
    /// # Errors
    /// `Tokenizer` if it cannot be put together.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, RunError> {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::HuggingFace { known, path, .. } => {
                let bad = |reason: String| RunError::Tokenizer { path: path.clone(), reason };
                let decoded = contained(|| known.decode(tokens, false)).map_err(bad)?;
                decoded.map_err(|error| bad(error.to_string()))
            }
        }
    }

    /// The token of a text such as `<|endoftext|>`, or of a number.
    ///
    /// # Errors
    /// `Data` if it is neither.
    pub fn token(&self, text: &str) -> Result<u32, RunError> {
        let named = match self {
            Self::Bytes => None,
            Self::HuggingFace { known, .. } => known.token_to_id(text),
        };
        let token = named.or_else(|| text.parse().ok());
        token.ok_or_else(|| {
            RunError::Data(format!("the tokenizer has no token `{text}`, and it is no number"))
        })
    }

    /// For the tokens that it makes.
    pub fn tokenizer(&self) -> Tokenizer {
        match self {
            Self::Bytes => Tokenizer::Bytes,
            Self::HuggingFace { file, .. } => Tokenizer::HuggingFace(Arc::clone(file)),
        }
    }
}

/// The tokenizer of a file. Its library panics at JSON that is cut, and makes room for as much as a table of characters
/// says that it holds: both are refused before.
fn checked(file: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    let json: Value = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    check_tables(&json)?;
    contained(|| tokenizers::Tokenizer::from_bytes(file))?.map_err(|error| error.to_string())
}

fn check_tables(json: &Value) -> Result<(), String> {
    match json {
        Value::Object(entries) => {
            if let Some(Value::String(table)) = entries.get("precompiled_charsmap")
                && first_number(table).is_none_or(|size| size as usize > table.len())
            {
                return Err("its `precompiled_charsmap` is no table of characters".into());
            }
            entries.values().try_for_each(check_tables)
        }
        Value::Array(values) => values.iter().try_for_each(check_tables),
        _ => Ok(()),
    }
}

/// The number in the first 4 bytes of a text in base 64: how many bytes of a table follow.
fn first_number(text: &str) -> Option<u32> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |letter: &u8| DIGITS.iter().position(|digit| digit == letter);
    let digits: Vec<usize> = text.as_bytes().get(..6)?.iter().map(digit).collect::<Option<_>>()?;
    let bits = digits.into_iter().fold(0u64, |bits, digit| bits << 6 | digit as u64);
    Some(((bits >> 4) as u32).swap_bytes())
}

fn utf8(text: &[u8]) -> Result<&str, RunError> {
    std::str::from_utf8(text).map_err(|error| RunError::Data(format!("a tokenizer reads UTF-8, and {error}")))
}
