//! The shared vocabulary: what is trained, on what, how, and the program of ops that follows from it.

pub mod calibration;
pub mod catalog;
pub mod cluster;
pub mod collective;
pub mod context;
pub mod data;
pub mod error;
pub mod experts;
pub mod job;
pub mod lower;
pub mod memory;
pub mod mesh;
pub mod model;
pub mod nccl;
pub mod optimizer;
pub mod plan;
pub mod precision;
pub mod program;
pub mod reliability;
pub mod schedule;
pub mod sourced;
pub mod stack;
pub mod tensor;
pub mod units;

/// The page about new schedules: its example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../docs/adding-a-schedule.md")]
pub struct AddingASchedule;
