//! Launches of embedding.cu.

use super::launch::{Address, Launch, Multiprocessors, Number, round_to_warps};

const FILE: &str = "embedding";

/// Rows of a table by entry, with positions added.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct LookUp {
    /// rows × width.
    pub table: Address,
    /// u32 per token.
    pub entries: Address,
    /// positions × width, or `NULL`.
    pub positions: Address,
    /// tokens × width.
    pub out: Address,
    /// Tokens.
    pub tokens: i32,
    /// Length of a row.
    pub width: i32,
    /// The table's first entry.
    pub first: i32,
    /// The table's rows.
    pub rows: i32,
    /// Sequences: token = position · batch + sequence.
    pub batch: i32,
    /// Position of the first tokens.
    pub first_position: i32,
}

impl LookUp {
    /// All versions for its shape, the fastest last.
    pub fn ladder(&self, number: Number, gpu: Multiprocessors) -> Vec<Launch> {
        let numbers = i64::from(self.tokens) * i64::from(self.width);
        let end = number.suffix();
        let mut ladder = vec![Launch::new(
            FILE,
            format!("look_up_simple_{end}"),
            [gpu.strided(numbers, 256), 1, 1],
            256,
            self,
        )];
        if self.width % number.pack() == 0 {
            let blocks = (self.tokens + 7) / 8;
            ladder.push(Launch::new(FILE, format!("look_up_packed_{end}"), [blocks, 1, 1], 256, self));
        }
        ladder
    }

    /// The fastest version.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        self.ladder(number, gpu).pop().expect("the simple version does all")
    }
}

/// The gradient of a table, added to it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct TableGradient {
    /// tokens × width.
    pub gradient: Address,
    /// u32 per token.
    pub entries: Address,
    /// Tokens sorted by entry, as `experts::Sort` makes it.
    pub order: Address,
    /// u32, rows + 1: where each row's tokens begin in `order`.
    pub starts: Address,
    /// f32, rows × width.
    pub table: Address,
    /// Tokens.
    pub tokens: i32,
    /// Length of a row.
    pub width: i32,
    /// The table's first entry.
    pub first: i32,
    /// The table's rows.
    pub rows: i32,
}

impl TableGradient {
    /// All versions, the fastest last. The first needs no order.
    pub fn ladder(&self, number: Number, gpu: Multiprocessors) -> Vec<Launch> {
        let numbers = i64::from(self.tokens) * i64::from(self.width);
        let end = number.suffix();
        let (blocks, threads) = (gpu.strided(numbers, 256), round_to_warps(self.width, 256));
        let mut ladder = vec![
            Launch::new(FILE, format!("table_gradient_atomic_{end}"), [blocks, 1, 1], 256, self),
            Launch::new(FILE, format!("table_gradient_sorted_{end}"), [self.rows, 1, 1], threads, self),
        ];
        let aligned = [self.gradient, self.table].iter().all(|address| address.0 % 16 == 0);
        if self.width % number.pack() == 0 && aligned {
            let threads = round_to_warps(self.width / number.pack(), 256);
            let kernel = format!("table_gradient_packed_{end}");
            ladder.push(Launch::new(FILE, kernel, [self.rows, 1, 1], threads, self));
        }
        ladder
    }

    /// The fastest version; its sums have a fixed order.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        self.ladder(number, gpu).pop().expect("two versions suit all shapes")
    }
}
