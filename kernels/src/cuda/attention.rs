//! Launches of attention.cu.

use super::dropout::Drops;
use super::launch::{Address, Launch, Number};

const FILE: &str = "attention";
/// As in attention.cu: queries or keys of a block.
const BLOCK_ROWS: i32 = 64;

/// Blocks of four warps, a warp for each position, head and sequence.
fn warps([positions, heads, batch]: [i32; 3]) -> [i32; 3] {
    [(positions + 3) / 4, heads, batch]
}

/// Heads of queries, keys and values in rows of tokens: row = position · batch + sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Attention {
    /// The first query head of the first token.
    pub q: Address,
    /// The first key head.
    pub k: Address,
    /// The first value head.
    pub v: Address,
    /// The first head's output.
    pub o: Address,
    /// f32: batch × heads × queries, L.
    pub logarithms: Address,
    /// Backward only: like `o`.
    pub o_gradient: Address,
    /// f32, backward only: like `logarithms`.
    pub dots: Address,
    /// Backward only: like `q`.
    pub q_gradient: Address,
    /// Like `k`.
    pub k_gradient: Address,
    /// Like `v`.
    pub v_gradient: Address,
    /// Elements from one token's queries to the next token's.
    pub q_row: i64,
    /// As `q_row`, of keys.
    pub k_row: i64,
    /// As `q_row`, of values.
    pub v_row: i64,
    /// As `q_row`, of outputs.
    pub o_row: i64,
    /// Sequences.
    pub batch: i32,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Positions of queries.
    pub queries: i32,
    /// Positions of keys.
    pub keys: i32,
    /// Width of a query or key head.
    pub head_dim: i32,
    /// Width of a value head.
    pub value_head_dim: i32,
    /// 1: a query sees keys up to its position.
    pub causal: i32,
    /// The first query's position minus the first key's.
    pub offset: i32,
    /// 1/√d.
    pub scale: f32,
    /// Dropout of the probabilities.
    pub drops: Drops,
}

/// A pass of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Outputs and L.
    Forward,
    /// Gradients from those. A library may sum dQ in any order, so results may differ in their last bits from run to run.
    Backward,
    /// Gradients with the same bits in every run.
    DeterministicBackward,
}

impl Pass {
    /// All of them.
    pub const ALL: [Pass; 3] = [Pass::Forward, Pass::Backward, Pass::DeterministicBackward];

    /// Whether it computes gradients.
    pub fn is_backward(self) -> bool {
        self != Pass::Forward
    }
}

impl Attention {
    /// Causal attention over packed rows: a token's queries, keys and values side by side, and their gradients alike. The caller
    /// sets the other addresses.
    pub fn packed(
        [rows, gradients]: [Address; 2],
        [batch, heads, kv_heads, head_dim, positions]: [usize; 5],
        number: Number,
    ) -> Self {
        let row = ((heads + 2 * kv_heads) * head_dim) as i64;
        let [keys, values] = [heads, heads + kv_heads].map(|heads| heads * head_dim * number.size());
        Self {
            q: rows,
            k: rows.after(keys),
            v: rows.after(values),
            q_gradient: gradients,
            k_gradient: gradients.after(keys),
            v_gradient: gradients.after(values),
            q_row: row,
            k_row: row,
            v_row: row,
            o_row: (heads * head_dim) as i64,
            batch: batch as i32,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            queries: positions as i32,
            keys: positions as i32,
            head_dim: head_dim as i32,
            value_head_dim: head_dim as i32,
            causal: 1,
            scale: 1.0 / (head_dim as f32).sqrt(),
            ..Self::default()
        }
    }

    /// All versions of forward for its shape, the fastest last.
    pub fn forward(&self, number: Number) -> Vec<Launch> {
        let simple = format!("attention_forward_simple_{}", number.suffix());
        let mut ladder = vec![self.by_warp(simple, self.queries, self.heads)];
        if self.on_tensor_cores(number) {
            for (name, stages) in [("tiles", 1), ("staged", 2)] {
                let kernel = format!("attention_forward_{name}_{}", self.head_dim);
                ladder.push(self.by_tile(kernel, self.queries, self.heads, 2 * stages * BLOCK_ROWS));
            }
        }
        ladder
    }

    /// All versions of backward for its shape, the fastest last; each is several launches.
    pub fn backward(&self, number: Number) -> Vec<Vec<Launch>> {
        let end = number.suffix();
        let dots = self.by_warp(format!("attention_dots_{end}"), self.queries, self.heads);
        let mut ladder = vec![vec![
            dots.clone(),
            self.by_warp(format!("attention_keys_simple_{end}"), self.keys, self.kv_heads),
            self.by_warp(format!("attention_queries_simple_{end}"), self.queries, self.heads),
        ]];
        if self.on_tensor_cores(number) {
            let width = self.head_dim;
            let tile_rows = 2 * BLOCK_ROWS + 2 * if width == 64 { 64 } else { 32 };
            ladder.push(vec![
                dots,
                self.by_tile(format!("attention_keys_tiles_{width}"), self.keys, self.kv_heads, tile_rows),
                self.by_tile(format!("attention_queries_tiles_{width}"), self.queries, self.heads, tile_rows),
            ]);
        }
        ladder
    }

    fn on_tensor_cores(&self, number: Number) -> bool {
        number == Number::Bf16
            && self.drops.threshold == 0
            && matches!(self.head_dim, 64 | 128)
            && self.value_head_dim == self.head_dim
            && self.v_row == self.k_row
            && [self.q_row, self.k_row, self.o_row].iter().all(|row| row % 8 == 0)
            && [self.q, self.k, self.v, self.o_gradient].iter().all(|address| address.0 % 16 == 0)
    }

    fn by_warp(&self, kernel: String, positions: i32, heads: i32) -> Launch {
        assert!(self.head_dim.max(self.value_head_dim) <= 256, "heads are at most 256 wide");
        Launch::new(FILE, kernel, warps([positions, heads, self.batch]), 128, self)
    }

    fn by_tile(&self, kernel: String, positions: i32, heads: i32, tile_rows: i32) -> Launch {
        let grid = [(positions + BLOCK_ROWS - 1) / BLOCK_ROWS, heads, self.batch];
        // A row has 16 bytes of padding.
        Launch::new(FILE, kernel, grid, 128, self).with_shared(tile_rows * (self.head_dim + 8) * 2)
    }
}

/// Adds the attention of the same queries over other keys to a first one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Join {
    /// The first head's output.
    pub o: Address,
    /// f32: batch × heads × queries, L.
    pub logarithms: Address,
    /// Like `o`, over the other keys.
    pub other: Address,
    /// Like `logarithms`.
    pub other_logarithms: Address,
    /// Elements from one token's outputs to the next token's, in both.
    pub o_row: i64,
    /// Sequences.
    pub batch: i32,
    /// Query heads.
    pub heads: i32,
    /// Positions of queries.
    pub queries: i32,
    /// Width of a value head.
    pub value_head_dim: i32,
}

impl Join {
    /// The launch.
    pub fn launch(&self, number: Number) -> Launch {
        let kernel = format!("attention_join_{}", number.suffix());
        Launch::new(FILE, kernel, warps([self.queries, self.heads, self.batch]), 128, self)
    }
}
