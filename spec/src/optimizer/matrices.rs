//! Optimizers that update a matrix as one, not element by element.

use crate::precision::Precision;
use crate::units::Bytes;

/// The cost of the update of a matrix.
pub trait MatrixRule: Sync {
    /// Bytes of moments for each element, without the master weights.
    fn moment_bytes(&self) -> Bytes;

    /// Bytes of other fp32 state for each element.
    fn factor_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Whether it needs whole matrices, so that ranks with parts of one gather it, in the precision of `products`.
    fn needs_whole(&self) -> bool;

    /// The products of a step with `elements` of a matrix, or with all of it where it needs whole ones.
    fn products(&self, shape: [u64; 2], elements: u64) -> MatrixProducts;
}

/// Products of one precision.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixProducts {
    /// Precision of the operands.
    pub precision: Precision,
    /// How many, and the sizes [m, n, k] of each: (m × k) · (k × n).
    pub products: Vec<(u64, [u64; 3])>,
}

impl MatrixProducts {
    /// 2 m n k for each.
    pub fn flops(&self) -> f64 {
        let of =
            |(count, [m, n, k]): &(u64, [u64; 3])| 2.0 * *count as f64 * *m as f64 * *n as f64 * *k as f64;
        self.products.iter().map(of).sum()
    }
}
