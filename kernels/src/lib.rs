//! The kernels of a transformer: arrays in, arrays out. The kernels for CPUs are here, those for NVIDIA GPUs in `cuda`.
//!
//! This crate does not know ranks, models or plans. Matrices are row-major slices; a row is a token. Every kernel is generic over
//! `Real`: training uses f32, and finite differences check it in f64.
//!
//! ```
//! use trainwright_kernels::{Matrix, Onto, Threads, multiply};
//! let (a, b) = ([1.0f32, 2.0, 3.0, 4.0], [5.0f32, 6.0, 7.0, 8.0]);
//! let mut product = [0.0; 4];
//! // [1 2; 3 4] times the transpose of [5 6; 7 8].
//! multiply(&mut product, Onto::Replace, Matrix::rows(&a, 2), Matrix::rows(&b, 2).transposed(), Threads::ONE);
//! assert_eq!(product, [17.0, 23.0, 39.0, 53.0]);
//! ```

pub mod activation;
pub mod attention;
pub mod cross_entropy;
pub mod cuda;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod fp8;
mod lanes;
mod matmul;
pub mod norm;
pub mod optimizer;
pub mod packed;
mod real;
pub mod rotary;
mod threads;

pub use matmul::{Matrix, Onto, multiply, multiply_into};
pub use real::Real;
pub use threads::Threads;
