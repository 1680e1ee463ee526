//! Answers as text for people and as JSON for machines. Nothing here reads a file or prints.

pub mod catalog;
pub mod compare;
pub mod curves;
pub mod fit;
pub mod forecast;
pub mod generation;
pub mod goodput;
pub mod json;
pub mod kernels;
pub mod network;
pub mod ops;
pub mod plans;
pub mod refusal;
pub mod reliability;
pub mod replay;
pub mod report;
pub mod run_errors;
pub mod scoreboard;
pub mod serving;
pub mod serving_errors;
mod stages;
pub mod stragglers;
mod table;
pub mod training;
pub mod validate;
pub mod what_if;
pub mod words;
