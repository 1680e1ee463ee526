//! What is trained on.
//!
//! ```text
//! file ─ format ─► source (tokens in a row) ─┐
//!                                            ├─► tokens ─ loader ─► batches of sequences
//! made-up or short texts ──► source ─────────┘
//! ```

pub(crate) mod format;
pub(crate) mod loader;
mod megatron;
mod source;
mod text;
pub(crate) mod tokenizer;
pub(crate) mod tokens;
