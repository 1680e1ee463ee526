//! Answers as text for people and as JSON for machines. Nothing here reads a file or prints.

pub mod catalog;
pub mod forecast;
pub mod json;
pub mod network;
pub mod plans;
pub mod refusal;
mod stages;
mod table;
pub mod training;
pub mod words;
