//! Arguments of `run` for its data.

use super::one_of;
use clap::Args;
use std::num::NonZeroUsize;
use trainwright_executor::{DATA_FORMATS, DataFormat};

/// What is trained on, and what is held out.
#[derive(Debug, Args)]
pub struct DataArguments {
    /// The data to train on, several times for several files; without it, made-up tokens. A text, a .jsonl with `text` on each
    /// line, a .parquet with a column `text`, Megatron's .bin with its .idx, or tokens as .u16 or .u32
    #[arg(long, value_name = "FILE")]
    pub data: Vec<String>,
    /// The format of --data and --validation-data [default: what their names say]
    #[arg(long, requires = "data", value_parser = one_of(&DATA_FORMATS, DataFormat::name))]
    pub data_format: Option<DataFormat>,
    /// The shares of the files in the sequences, one number for each --data [default: their numbers of tokens]
    #[arg(long, value_name = "NUMBER,...", requires = "data", value_delimiter = ',', value_parser = weight)]
    pub data_weights: Vec<f64>,
    /// A Hugging Face tokenizer.json that cuts texts; without it each byte is a token
    #[arg(long, value_name = "FILE", requires = "data")]
    pub tokenizer: Option<String>,
    /// The token behind each document of a .jsonl or .parquet, or that ends the documents in .u16 and .u32: its text in the
    /// tokenizer, or its number
    #[arg(long, value_name = "TOKEN", requires = "data")]
    pub end_of_document: Option<String>,
    /// Keep the documents that are packed into a sequence apart: attention stays inside each, its positions begin at 0, and its
    /// last token predicts nothing. A .txt is one document
    #[arg(long, requires = "data")]
    pub document_mask: bool,
    /// Measure the loss of held-out data after every N steps and after the last one
    #[arg(long, value_name = "N")]
    pub validate_every: Option<NonZeroUsize>,
    /// The held-out data
    #[arg(long, value_name = "FILE", requires = "validate_every", conflicts_with = "validation_fraction")]
    pub validation_data: Option<String>,
    /// Hold out this fraction of the data, the end of each file
    #[arg(long, value_name = "FRACTION", requires = "validate_every", value_parser = fraction, allow_negative_numbers = true)]
    pub validation_fraction: Option<f64>,
    /// The most batches of held-out data, the first ones; a batch has as many sequences as a step
    #[arg(long, value_name = "N", default_value = "10", requires = "validate_every")]
    pub validation_batches: NonZeroUsize,
}

fn weight(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|weight: &f64| weight.is_finite() && *weight > 0.0);
    number.ok_or_else(|| "it must be a number above 0".into())
}

fn fraction(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|part: &f64| *part > 0.0 && *part < 1.0);
    number.ok_or_else(|| "it must be a number between 0 and 1".into())
}
