//! The kernels of a transformer: arrays in, arrays out.
//!
//! Nothing here knows what a rank, a model or a plan is.

pub mod cuda;
