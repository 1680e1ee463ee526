//! fp8: launches of fp8.cu, and products, which sum in f32.

use super::launch::{Address, Launch, Multiprocessors, Number};
use crate::fp8::Fp8;

const FILE: &str = "fp8";

/// A matrix cast to fp8 with one scale.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct CastFp8 {
    /// rows × width.
    pub x: Address,
    /// f32, `blocks()`: scratch.
    pub largest: Address,
    /// f32: the scale, by which fp8 values are multiplied.
    pub scale: Address,
    /// rows × width, or `NULL`.
    pub out: Address,
    /// width × rows, or `NULL`.
    pub transposed: Address,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
    /// `launches` sets it.
    pub blocks: i32,
}

impl CastFp8 {
    /// Elements of `largest`.
    pub fn blocks(&self, gpu: Multiprocessors) -> i32 {
        gpu.strided(i64::from(self.rows) * i64::from(self.width), 256)
    }

    /// The two launches: the largest element, then the cast.
    pub fn launches(&self, from: Number, to: Fp8, gpu: Multiprocessors) -> [Launch; 2] {
        let cast = CastFp8 { blocks: self.blocks(gpu), ..*self };
        let largest = format!("largest_{}", from.suffix());
        let narrow = format!("narrow_{}_{}", to.name(), from.suffix());
        // Each block reads the results of all blocks of the first launch, so there are at most two waves of them.
        let columns = (self.width + 31) / 32;
        let tiles = [columns, ((self.rows + 31) / 32).clamp(1, (gpu.two_waves() / columns).max(1)), 1];
        [
            Launch::new(FILE, largest, [cast.blocks, 1, 1], 256, &cast),
            Launch::new(FILE, narrow, tiles, 256, &cast),
        ]
    }
}

/// out (rows × columns) = scales · left (rows × inner) · rightᵀ (columns × inner): the inner dimension is contiguous in both operands, as
/// tensor cores require. All dimensions are multiples of 16. At most one operand is e5m2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fp8Product {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// The dimension that is summed over.
    pub inner: usize,
    /// Format of `left`.
    pub left: Fp8,
    /// Format of `right`.
    pub right: Fp8,
    /// Number type of the result.
    pub output: Number,
    /// Whether the product is added to `out`.
    pub accumulate: bool,
    /// Whether a number per column is added before the result is rounded. Only for bf16 results.
    pub bias: bool,
}

/// Addresses of a product's matrices and scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fp8Operands {
    /// rows × inner.
    pub left: Address,
    /// f32, from `CastFp8`.
    pub left_scale: Address,
    /// columns × inner.
    pub right: Address,
    /// f32.
    pub right_scale: Address,
    /// rows × columns.
    pub out: Address,
    /// `columns` elements of the result's type, or `NULL`.
    pub bias: Address,
}
