//! One file per command: what it calls, in which order, and how it ends.

pub mod fit;
pub mod network;
pub mod plan;
pub mod predict;
pub mod show;
pub mod simulate;
