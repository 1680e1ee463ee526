//! Muon: momentum of matrices, made orthogonal.

use super::{MatrixProducts, MatrixRule, Optimizer};
use crate::precision::Precision;
use crate::units::Bytes;

/// One fp32 moment of the blocks' matrices; AdamW for embeddings, output layer and vectors.
pub struct Muon;

/// Newton–Schulz steps of an update.
const STEPS: u64 = 5;

impl Optimizer for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn summary(&self) -> &'static str {
        "orthogonalised momentum of the blocks' matrices, AdamW for the rest"
    }

    fn source(&self) -> &'static str {
        "Liu et al. 2025, arXiv 2502.16982"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::new(8.0)
    }

    fn of_matrices(&self) -> Option<&dyn MatrixRule> {
        Some(self)
    }
}

impl MatrixRule for Muon {
    fn moment_bytes(&self) -> Bytes {
        Bytes::new(4.0)
    }

    fn needs_whole(&self) -> bool {
        true
    }

    /// Of each step X ← a X + (b A + c A²) X with A = X Xᵀ, X m × n with m ≤ n: 4 m² n + 2 m³ FLOPs in bf16.
    fn products(&self, [rows, columns]: [u64; 2], _: u64) -> MatrixProducts {
        let (m, n) = (rows.min(columns), rows.max(columns));
        let products = vec![(STEPS, [m, m, n]), (STEPS, [m, m, m]), (STEPS, [m, n, m])];
        MatrixProducts { precision: Precision::Bf16, products }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_newton_schulz() {
        let flops = |shape| Muon.products(shape, shape.iter().product()).flops();
        let (m, n) = (1024.0, 4096.0);
        assert_eq!(flops([1024, 4096]), 5.0 * (4.0 * m * m * n + 2.0 * m * m * m));
        assert_eq!(flops([4096, 1024]), flops([1024, 4096]));
    }
}
