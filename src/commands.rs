//! One file per command: what it calls, in which order, and how it ends.

pub mod network;
pub mod plan;
pub mod run;
pub mod show;
pub mod simulate;
