//! One file per command: what it calls, in which order, and how it ends.

pub mod network;
pub mod plan;
pub mod show;
pub mod simulate;
pub mod what_if;
