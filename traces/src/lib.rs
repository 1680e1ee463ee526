//! Timelines: what a training step looks like in time, whoever ran it.

pub mod timeline;
