//! Launches of norm.cu.

use super::launch::{Address, Launch, Multiprocessors, Number, round_to_warps};

const FILE: &str = "norm";
/// As in norm.cu.
const FORWARD_PACKS: i32 = 4;
const BACKWARD_PACKS: i32 = 2;

/// LayerNorm or RMSNorm of rows, after an addition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct NormForward {
    /// rows × width.
    pub x: Address,
    /// Added to `x` before, or `NULL`.
    pub residual: Address,
    /// width, added to `x` with `residual`, or `NULL`.
    pub added_bias: Address,
    /// width, or `NULL`.
    pub gain: Address,
    /// width, or `NULL`.
    pub bias: Address,
    /// x + added bias + residual; may be `x`. `NULL` without a residual.
    pub sum: Address,
    /// rows × width.
    pub out: Address,
    /// f32, rows.
    pub mean: Address,
    /// f32, rows: 1/s.
    pub scale: Address,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
    /// ε.
    pub epsilon: f32,
    /// 1 for LayerNorm.
    pub centred: i32,
}

impl NormForward {
    /// All versions for its shape, the fastest last.
    pub fn ladder(&self, number: Number) -> Vec<Launch> {
        let end = number.suffix();
        let warps = (self.rows + 7) / 8;
        let mut ladder =
            vec![Launch::new(FILE, format!("norm_forward_simple_{end}"), [warps, 1, 1], 256, self)];
        let packs = self.width / number.pack();
        if self.width % number.pack() == 0 && packs <= 256 * FORWARD_PACKS {
            let threads = round_to_warps(packs, 256);
            ladder.push(Launch::new(
                FILE,
                format!("norm_forward_packed_{end}"),
                [self.rows, 1, 1],
                threads,
                self,
            ));
        }
        ladder
    }

    /// The fastest version.
    pub fn launch(&self, number: Number) -> Launch {
        self.ladder(number).pop().expect("the simple version does all")
    }
}

/// The gradients of a norm's input, gain and bias.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct NormBackward {
    /// rows × width, what forward normalised.
    pub x: Address,
    /// width, or `NULL`.
    pub gain: Address,
    /// rows × width.
    pub out_gradient: Address,
    /// f32, rows.
    pub mean: Address,
    /// f32, rows.
    pub scale: Address,
    /// rows × width, added to.
    pub gradient: Address,
    /// f32, blocks × width, which `reduce::ColumnSum` adds up; or nothing.
    pub partial_gain: Address,
    /// The same for the bias.
    pub partial_bias: Address,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
    /// 1 for LayerNorm.
    pub centred: i32,
}

impl NormBackward {
    /// Rows of partial sums.
    pub fn blocks(&self, gpu: Multiprocessors) -> i32 {
        // One wave: a multiprocessor holds two blocks of the packed version.
        self.rows.clamp(1, 2 * gpu.0)
    }

    /// The gradients of gain and bias alone.
    pub fn vectors(&self, number: Number, gpu: Multiprocessors) -> Launch {
        let columns = [(self.width + 255) / 256, self.blocks(gpu), 1];
        Launch::new(FILE, format!("norm_vectors_simple_{}", number.suffix()), columns, 256, self)
    }

    /// The gradient of the input, and those of gain and bias if the fastest version computes them too.
    pub fn input(&self, number: Number, gpu: Multiprocessors) -> Launch {
        self.launch(number, gpu).swap_remove(0)
    }

    /// All versions that can do it, the fastest last; each may be several launches.
    pub fn ladder(&self, number: Number, gpu: Multiprocessors) -> Vec<Vec<Launch>> {
        let end = number.suffix();
        let warps = (self.rows + 7) / 8;
        let simple = Launch::new(FILE, format!("norm_backward_simple_{end}"), [warps, 1, 1], 256, self);
        let mut ladder = vec![vec![simple, self.vectors(number, gpu)]];
        let packs = self.width / number.pack();
        if self.width % number.pack() == 0 && packs <= 512 * BACKWARD_PACKS {
            // One pack per thread up to 256 threads; then more threads, then two packs per thread.
            let threads = round_to_warps(packs, if packs <= 256 * BACKWARD_PACKS { 256 } else { 512 });
            let blocks = [self.blocks(gpu), 1, 1];
            let packed = Launch::new(FILE, format!("norm_backward_packed_{end}"), blocks, threads, self);
            ladder.push(vec![packed]);
        }
        ladder
    }

    /// The fastest version.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Vec<Launch> {
        self.ladder(number, gpu).pop().expect("the simple version does all")
    }
}

/// A norm of rows whose columns are sharded over a group of ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct NormPart {
    /// rows × width.
    pub x: Address,
    /// width, or `NULL`.
    pub gain: Address,
    /// width, or `NULL`.
    pub bias: Address,
    /// rows × width; backward only.
    pub out_gradient: Address,
    /// f32, rows.
    pub mean: Address,
    /// f32, rows.
    pub scale: Address,
    /// f32, rows × 2: in forward Σ x and Σ x², in backward Σ e and Σ e h.
    pub sums: Address,
    /// rows × width.
    pub out: Address,
    /// Rows.
    pub rows: i32,
    /// Columns here.
    pub width: i32,
    /// Columns on all ranks.
    pub all_columns: i32,
    /// 1 for LayerNorm.
    pub centred: i32,
}

impl NormPart {
    /// The sums over this rank's columns.
    pub fn sums(&self, number: Number) -> Launch {
        self.by_row("sums", number)
    }

    /// The output, from mean and scale over all columns.
    pub fn forward(&self, number: Number) -> Launch {
        self.by_row("forward", number)
    }

    /// The sums over this rank's columns in backward.
    pub fn sums_back(&self, number: Number) -> Launch {
        self.by_row("sums_back", number)
    }

    /// Adds the input's gradient, from the sums over all columns.
    pub fn backward(&self, number: Number) -> Launch {
        self.by_row("backward", number)
    }

    fn by_row(&self, what: &str, number: Number) -> Launch {
        let kernel = format!("norm_part_{what}_{}", number.suffix());
        Launch::new(FILE, kernel, [(self.rows + 7) / 8, 1, 1], 256, self)
    }
}
