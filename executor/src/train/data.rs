//! What is trained on: tokens and who made them.

mod tokenizer;
pub(crate) mod tokens;
