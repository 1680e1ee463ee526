//! What was measured elsewhere: published collectives (`published`) and tables of training runs (`training`), each row with its
//! source.
//!
//! Nothing here knows what a forecast says of a row.

pub mod published;
pub mod training;
