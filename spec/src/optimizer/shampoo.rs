//! Shampoo: gradients of matrices between inverse roots of their second moments.

use super::{MatrixProducts, MatrixRule, Optimizer};
use crate::precision::Precision;
use crate::units::Bytes;

/// Preconditioned matrices of blocks, with the step size of Adam; AdamW for embeddings, output layer and vectors.
pub struct Shampoo;

/// Rows and columns at which a matrix is cut into blocks, each with factors of its own.
const BLOCK: u64 = 1024;

impl Optimizer for Shampoo {
    fn name(&self) -> &'static str {
        "shampoo"
    }

    fn summary(&self) -> &'static str {
        "the blocks' matrices preconditioned in parts of 1024 x 1024 (new inverse roots every 100 or so steps not counted), AdamW \
         for the rest"
    }

    fn source(&self) -> &'static str {
        "Shi et al. 2023, arXiv 2309.06497"
    }

    fn moment_bytes(&self) -> Bytes {
        Bytes::new(8.0)
    }

    fn of_matrices(&self) -> Option<&dyn MatrixRule> {
        Some(self)
    }
}

impl MatrixRule for Shampoo {
    /// The moment, and the second moment of the method whose step size is taken.
    fn moment_bytes(&self) -> Bytes {
        Bytes::new(8.0)
    }

    /// Of b × b elements two factors of b × b and their inverse roots.
    fn factor_bytes(&self) -> Bytes {
        Bytes::new(16.0)
    }

    /// Parts of a matrix are blocks, or several.
    fn needs_whole(&self) -> bool {
        false
    }

    /// Of each block G of b × b: L += G Gᵀ, R += Gᵀ G, and L⁻¹ᐟ⁴ G R⁻¹ᐟ⁴, in fp32.
    fn products(&self, [rows, columns]: [u64; 2], elements: u64) -> MatrixProducts {
        let b = BLOCK.min(rows.min(columns)).max(1);
        MatrixProducts {
            precision: Precision::Fp32,
            products: vec![(4 * elements.div_ceil(b * b), [b, b, b])],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_products_of_each_block() {
        let products = Shampoo.products([4096, 2048], 4096 * 2048);
        assert_eq!(products.products, [(4 * 8, [1024, 1024, 1024])]);
        // Half of the rows, and a matrix narrower than a block.
        assert_eq!(Shampoo.products([4096, 2048], 2048 * 2048).products, [(16, [1024, 1024, 1024])]);
        assert_eq!(Shampoo.products([4096, 256], 4096 * 256).products, [(64, [256, 256, 256])]);
    }
}
