//! Launches of grouped.cu.

use super::launch::{Address, Launch, Number, rows};

const FILE: &str = "grouped";

/// Rows and columns of the result tile of a block on tensor cores.
pub const TILE: i32 = 128;

/// Bytes of two stages of both operand tiles, 128 × (64 + 8) bf16 each.
const SHARED: i32 = 2 * 2 * TILE * (64 + 8) * 2;

/// The product of each expert's rows with its matrix, outputs × inputs, or one of its gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct GroupedProduct {
    /// rows × inputs in forward, rows × outputs in the other passes.
    pub left: Address,
    /// experts × outputs × inputs; rows × inputs for the gradient of weights.
    pub right: Address,
    /// rows × outputs in forward, rows × inputs in backward.
    pub out: Address,
    /// f32: experts × outputs × inputs; the weights' gradient is added to it.
    pub gradients: Address,
    /// u32: experts + 1, where each expert's rows begin and where the last one's end.
    pub starts: Address,
    /// Experts.
    pub experts: i32,
    /// Columns of a matrix.
    pub inputs: i32,
    /// Rows of a matrix.
    pub outputs: i32,
}

impl GroupedProduct {
    /// x Wᵀ of `rows` rows.
    pub fn forward(&self, rows: i32, number: Number) -> Vec<Launch> {
        self.by_rows("grouped_forward", rows, self.outputs, number)
    }

    /// y′ W of `rows` rows.
    pub fn backward(&self, rows: i32, number: Number) -> Vec<Launch> {
        self.by_rows("grouped_backward", rows, self.inputs, number)
    }

    /// W′ += y′ᵀ x.
    pub fn weights(&self, number: Number) -> Vec<Launch> {
        let kernel = format!("grouped_weights_simple_{}", number.suffix());
        let grid = [(self.inputs + 255) / 256, rows(self.outputs), self.experts];
        let mut ladder = vec![Launch::new(FILE, kernel, grid, 256, self)];
        if self.fits(number) {
            let grid = [tiles(self.inputs), tiles(self.outputs), self.experts];
            ladder.push(Launch::new(FILE, "grouped_weights_tiles", grid, 256, self).with_shared(SHARED));
        }
        ladder
    }

    fn by_rows(&self, kernel: &str, count: i32, width: i32, number: Number) -> Vec<Launch> {
        let simple = format!("{kernel}_simple_{}", number.suffix());
        let mut ladder = vec![Launch::new(FILE, simple, [(width + 255) / 256, rows(count), 1], 256, self)];
        if self.fits(number) {
            // At most one block for each expert is not full.
            let grid = [count / TILE + self.experts, tiles(width), 1];
            ladder.push(Launch::new(FILE, format!("{kernel}_tiles"), grid, 256, self).with_shared(SHARED));
        }
        ladder
    }

    /// Whether tensor cores can compute it: bf16 rows of a multiple of 16 bytes.
    pub fn fits(&self, number: Number) -> bool {
        number == Number::Bf16 && self.inputs % number.pack() == 0 && self.outputs % number.pack() == 0
    }
}

fn tiles(width: i32) -> i32 {
    (width + TILE - 1) / TILE
}
