//! Group operations.

mod kind;

pub use kind::CollectiveKind;
