//! Launches of experts.cu.

use super::launch::{Address, Launch, Number, round_to_warps};

const FILE: &str = "experts";

/// The choice of experts for each token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Routing {
    /// f32: tokens × experts.
    pub logits: Address,
    /// u32: tokens × chosen.
    pub experts: Address,
    /// f32: tokens × chosen.
    pub weights: Address,
    /// f32: tokens × experts, or `NULL`.
    pub probabilities: Address,
    /// Tokens.
    pub tokens: i32,
    /// Experts, at most 512.
    pub count: i32,
    /// Experts of a token.
    pub chosen: i32,
    /// 1: the weights of a token add up to 1.
    pub among_chosen: i32,
}

impl Routing {
    /// The launch.
    pub fn launch(&self) -> Launch {
        assert!(self.count <= 512 && self.chosen <= self.count, "at most 512 experts");
        Launch::new(FILE, "route", [(self.tokens + 7) / 8, 1, 1], 256, self)
    }
}

/// A stable sort of indices by key.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Sort {
    /// u32: count.
    pub keys: Address,
    /// u32: blocks × buckets, scratch.
    pub counts: Address,
    /// u32: buckets + 1, where each begins.
    pub starts: Address,
    /// u32: count.
    pub order: Address,
    /// How many.
    pub count: i32,
    /// Keys `first..first + buckets` are sorted, the others left out.
    pub buckets: i32,
    /// The first key.
    pub first: i32,
    /// Keys of a block.
    pub share: i32,
}

impl Sort {
    /// Blocks.
    pub fn blocks(&self) -> i32 {
        (self.count + self.share - 1) / self.share
    }

    /// The three launches.
    pub fn launches(&self) -> [Launch; 3] {
        let blocks = [self.blocks(), 1, 1];
        [
            Launch::new(FILE, "sort_count", blocks, 256, self),
            Launch::new(FILE, "sort_scan", [1, 1, 1], round_to_warps(self.buckets, 1024), self),
            Launch::new(FILE, "sort_place", blocks, 32, self),
        ]
    }
}

/// The place of each choice.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Invert {
    /// u32: places.
    pub order: Address,
    /// u32: buckets + 1.
    pub starts: Address,
    /// u32 per choice, all bits 1 before.
    pub places: Address,
    /// Buckets.
    pub buckets: i32,
}

impl Invert {
    /// The launch, for at most that many places.
    pub fn launch(&self, places: i32) -> Launch {
        Launch::new(FILE, "invert_order", [(places + 255) / 256, 1, 1], 256, self)
    }
}

/// Rows from tokens to places and back.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Permutation {
    /// Rows to read.
    pub x: Address,
    /// u32: choices by place.
    pub order: Address,
    /// u32: places by choice.
    pub places: Address,
    /// f32: tokens × chosen, or `NULL`.
    pub weights: Address,
    /// Rows to write.
    pub out: Address,
    /// For weight gradients: the experts' outputs, by place.
    pub other: Address,
    /// f32: tokens × chosen.
    pub weight_gradients: Address,
    /// Places for `gather`, tokens for the others.
    pub rows: i32,
    /// Experts of a token.
    pub chosen: i32,
    /// Length of a row, a multiple of 16 bytes.
    pub width: i32,
}

impl Permutation {
    /// `out[place] = x[token]`, times the weight.
    pub fn gather(&self, number: Number) -> Launch {
        self.by_row("gather_rows", number)
    }

    /// `out[token] = Σ weight · x[place]`.
    pub fn combine(&self, number: Number) -> Launch {
        self.by_row("combine_rows", number)
    }

    /// The gradient of each weight.
    pub fn weight_gradients(&self, number: Number) -> Launch {
        let kernel = format!("weight_gradients_{}", number.suffix());
        Launch::new(FILE, kernel, [(self.rows * self.chosen + 7) / 8, 1, 1], 256, self)
    }

    fn by_row(&self, kernel: &str, number: Number) -> Launch {
        assert!(self.width % number.pack() == 0, "a row is a multiple of 16 bytes");
        let threads = round_to_warps(self.width / number.pack(), 256);
        Launch::new(FILE, format!("{kernel}_{}", number.suffix()), [self.rows, 1, 1], threads, self)
    }
}
