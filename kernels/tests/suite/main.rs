//! Every kernel against central differences in f64, against itself in f32 and on several threads, and against PyTorch.

mod attention;
mod common;
mod gradients;
mod products;
mod torch;
