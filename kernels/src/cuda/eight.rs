//! Numbers of 8 bits: launches of eight.cu, and products of them, whose sums are f32.
//!
//! Source: Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv 2209.05433.

use super::launch::{Address, Launch, Number, rows, strided};

const FILE: &str = "eight";

/// A format of numbers of 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Eight {
    /// 4 bits of exponent and 3 of mantissa, up to 448: weights and activations.
    E4m3,
    /// 5 and 2, up to 57,344: gradients.
    E5m2,
}

impl Eight {
    /// Both.
    pub const ALL: [Eight; 2] = [Eight::E4m3, Eight::E5m2];

    /// As names of kernels say it.
    pub fn name(self) -> &'static str {
        match self {
            Eight::E4m3 => "e4m3",
            Eight::E5m2 => "e5m2",
        }
    }

    /// The largest number.
    pub fn largest(self) -> f32 {
        match self {
            Eight::E4m3 => 448.0,
            Eight::E5m2 => 57_344.0,
        }
    }

    /// The number that a code stands for.
    pub fn wide(self, code: u8) -> f32 {
        let (mantissa_bits, bias) = match self {
            Eight::E4m3 => (3, 7),
            Eight::E5m2 => (2, 15),
        };
        let exponent = i32::from(code & 0x7f) >> mantissa_bits;
        let mantissa = f32::from(code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits) as f32;
        let size = match exponent {
            0 => mantissa * 2f32.powi(1 - bias),
            _ => (1.0 + mantissa) * 2f32.powi(exponent - bias),
        };
        let size = match (self, code & 0x7f) {
            (Eight::E4m3, 0x7f) | (Eight::E5m2, 0x7d..) => f32::NAN,
            (Eight::E5m2, 0x7c) => f32::INFINITY,
            _ => size,
        };
        if code & 0x80 == 0 { size } else { -size }
    }
}

/// A matrix in numbers of 8 bits with a scale.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct NarrowEight {
    /// rows × width.
    pub x: Address,
    /// f32, `blocks()`, for the launches alone.
    pub largest: Address,
    /// f32: by what numbers of 8 bits are multiplied.
    pub scale: Address,
    /// rows × width.
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

impl NarrowEight {
    /// How many numbers `largest` has.
    pub fn blocks(&self) -> i32 {
        strided(i64::from(self.rows) * i64::from(self.width), 256)
    }

    /// Both launches.
    pub fn launches(&self, from: Number, to: Eight) -> [Launch; 2] {
        let own = NarrowEight { blocks: self.blocks(), ..*self };
        let largest = format!("largest_{}", from.suffix());
        let narrow = format!("narrow_{}_{}", to.name(), from.suffix());
        let tiles = [(self.width + 31) / 32, rows((self.rows + 31) / 32), 1];
        [
            Launch::new(FILE, largest, [own.blocks, 1, 1], 256, &own),
            Launch::new(FILE, narrow, tiles, 256, &own),
        ]
    }
}

/// out (rows × columns) = scales · left (rows × inner) · rightᵀ (columns × inner): what is summed over lies in one piece on both
/// sides, as tensor cores want it. 16 divides all dimensions. Not both sides are e5m2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EightProduct {
    /// Of the result.
    pub rows: usize,
    /// Of the result.
    pub columns: usize,
    /// What is summed over.
    pub inner: usize,
    /// Of `left`.
    pub left: Eight,
    /// Of `right`.
    pub right: Eight,
    /// Of the result.
    pub output: Number,
    /// Whether the result is added to what is there.
    pub accumulate: bool,
}

/// Where the matrices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EightOperands {
    /// rows × inner.
    pub left: Address,
    /// f32, as `NarrowEight` leaves it.
    pub left_scale: Address,
    /// columns × inner.
    pub right: Address,
    /// f32.
    pub right_scale: Address,
    /// rows × columns.
    pub out: Address,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_numbers_of_the_formats() {
        // Table 1 of the source: largest, least normal and least number of each.
        let e4m3 = [0x7e, 0x08, 0x01, 0xb8].map(|code| Eight::E4m3.wide(code));
        assert_eq!(e4m3, [448.0, 2f32.powi(-6), 2f32.powi(-9), -1.0]);
        let e5m2 = [0x7b, 0x04, 0x01, 0x3e].map(|code| Eight::E5m2.wide(code));
        assert_eq!(e5m2, [57_344.0, 2f32.powi(-14), 2f32.powi(-16), 1.5]);
        assert!(Eight::E4m3.wide(0xff).is_nan() && Eight::E5m2.wide(0x7d).is_nan());
        assert_eq!(Eight::E5m2.wide(0xfc), f32::NEG_INFINITY);
    }
}
