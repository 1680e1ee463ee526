//! The kernels of a transformer: arrays in, arrays out; on a CPU here, on NVIDIA GPUs in `cuda`.
//!
//! Nothing here knows what a rank, a model or a plan is. Matrices are slices, row after row; a row is a token. Every
//! kernel is generic over `Real`: in f32 it trains, in f64 it is the twin that finite differences check.
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
mod real;
pub mod rotary;
mod threads;

pub use matmul::{Matrix, Onto, multiply, multiply_into};
pub use real::Real;
pub use threads::Threads;
