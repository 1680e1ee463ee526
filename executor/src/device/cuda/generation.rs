//! GPUs do not generate tokens yet.

use super::super::GenerationOps;
use super::Cuda;

impl GenerationOps for Cuda {}
