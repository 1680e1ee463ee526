//! Numbers of 8 bits: launches of fp8.cu, and products of them, whose sums are f32.

use super::launch::{Address, Launch, Multiprocessors, Number};
use crate::fp8::Fp8;

const FILE: &str = "fp8";

/// A matrix in numbers of 8 bits with a scale.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct CastFp8 {
    /// rows × width.
    pub x: Address,
    /// f32, `blocks()`, for the launches alone.
    pub largest: Address,
    /// f32: by what numbers of 8 bits are multiplied.
    pub scale: Address,
    /// rows × width, or nothing.
    pub out: Address,
    /// width × rows, or nothing.
    pub transposed: Address,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
    /// `launches` sets it.
    pub blocks: i32,
}

impl CastFp8 {
    /// How many numbers `largest` has.
    pub fn blocks(&self, gpu: Multiprocessors) -> i32 {
        gpu.strided(i64::from(self.rows) * i64::from(self.width), 256)
    }

    /// Both launches.
    pub fn launches(&self, from: Number, to: Fp8, gpu: Multiprocessors) -> [Launch; 2] {
        let own = CastFp8 { blocks: self.blocks(gpu), ..*self };
        let largest = format!("largest_{}", from.suffix());
        let narrow = format!("narrow_{}_{}", to.name(), from.suffix());
        // Each block reads what all blocks of the first launch have found: not more of them than two waves.
        let columns = (self.width + 31) / 32;
        let tiles = [columns, ((self.rows + 31) / 32).clamp(1, (gpu.two_waves() / columns).max(1)), 1];
        [
            Launch::new(FILE, largest, [own.blocks, 1, 1], 256, &own),
            Launch::new(FILE, narrow, tiles, 256, &own),
        ]
    }
}

/// out (rows × columns) = scales · left (rows × inner) · rightᵀ (columns × inner): what is summed over lies in one piece on both
/// sides, as tensor cores want it. 16 divides all dimensions. Not both sides are e5m2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fp8Product {
    /// Of the result.
    pub rows: usize,
    /// Of the result.
    pub columns: usize,
    /// What is summed over.
    pub inner: usize,
    /// Of `left`.
    pub left: Fp8,
    /// Of `right`.
    pub right: Fp8,
    /// Of the result.
    pub output: Number,
    /// Whether the result is added to what is there.
    pub accumulate: bool,
    /// Whether a number per column is added before the result is rounded. The result is bf16 then.
    pub bias: bool,
}

/// Where the matrices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fp8Operands {
    /// rows × inner.
    pub left: Address,
    /// f32, as `CastFp8` leaves it.
    pub left_scale: Address,
    /// columns × inner.
    pub right: Address,
    /// f32.
    pub right_scale: Address,
    /// rows × columns.
    pub out: Address,
    /// `columns` of the result's numbers, or nothing.
    pub bias: Address,
}
