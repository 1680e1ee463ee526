//! One file per command: its calls, their order, and its exit code.

pub mod calibrate;
mod chakra;
pub mod compare;
pub mod curves;
pub mod export;
pub mod fit;
pub mod generate;
pub mod goodput;
pub mod import;
pub mod kernel;
mod kernel_tables;
pub mod network;
mod on_device;
mod pictures;
pub mod plan;
pub mod predict;
pub mod profile;
pub mod replay;
pub mod run;
pub mod serve;
mod serving_tables;
pub mod shell;
pub mod show;
pub mod simulate;
pub mod stragglers;
pub mod validate;
pub mod what_if;
