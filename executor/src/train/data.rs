//! What is trained on.
//!
//! ```text
//! file ─ format ─► source (tokens in a row) ─┐
//!                                            ├─► tokens ─ loader ─► batches of sequences
//! made-up or short texts ──► source ─────────┘
//! ```

pub(crate) mod documents;
pub(crate) mod format;
pub(crate) mod loader;
mod megatron;
#[cfg(feature = "parquet")]
mod parquet;
mod source;
mod text;
pub(crate) mod tokenizer;
pub(crate) mod tokens;
