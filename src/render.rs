//! Answers as text for people and as JSON for machines. Nothing here reads a file or prints.

pub mod catalog;
pub mod compare;
pub mod forecast;
pub mod goodput;
pub mod json;
pub mod network;
pub mod plans;
pub mod refusal;
pub mod report;
mod stages;
mod table;
pub mod training;
pub mod what_if;
pub mod words;
