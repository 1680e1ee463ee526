//! From text to tokens and back, for prompts and what follows them.

use crate::error::RunError;
use crate::train::data::tokenizer::Encoder;
use crate::train::data::tokens::Tokens;
use std::path::Path;

/// A tokenizer for prompts.
pub struct TextCoder(Encoder);

impl TextCoder {
    /// That of a `tokenizer.json`; without one each byte is a token.
    ///
    /// # Errors
    /// `Tokenizer` if the file cannot be read or is none.
    pub fn open(path: Option<&Path>) -> Result<Self, RunError> {
        Encoder::open(path).map(Self)
    }

    /// That which made some tokens; `None` if they do not say.
    pub fn of(tokens: &Tokens) -> Option<Self> {
        Encoder::of(tokens.tokenizer()).map(Self)
    }

    /// The tokens of a text, without special ones around it.
    ///
    /// # Errors
    /// `Tokenizer` if the text cannot be cut.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RunError> {
        self.0.encode(text.as_bytes())
    }

    /// The text of tokens. Bytes that are no UTF-8 become U+FFFD, and tokens that the tokenizer has not are left out.
    ///
    /// # Errors
    /// `Tokenizer` if it cannot be put together.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, RunError> {
        self.0.decode(tokens)
    }

    /// The token of a text such as `<|endoftext|>`, or of a number.
    ///
    /// # Errors
    /// `Data` if it is neither.
    pub fn token(&self, text: &str) -> Result<u32, RunError> {
        self.0.token(text)
    }
}
