//! Launches of reduce.cu.

use super::launch::{Address, Launch, Number, Touch, strided};

const FILE: &str = "reduce";

/// The sum of the rows of a matrix.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct ColumnSum {
    /// rows × width.
    pub x: Address,
    /// f32: shares × width.
    pub out: Address,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
    /// 1: added to what is there.
    pub add: i32,
}

impl ColumnSum {
    /// With the rows in that many shares, each of which has a row of `out`.
    pub fn launch(&self, number: Number, shares: i32) -> Launch {
        let columns = (self.width + 255) / 256;
        Launch::new(FILE, format!("column_sum_{}", number.suffix()), [columns, shares, 1], 256, self)
    }
}

/// Σ x² times a scale, one part per block.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct SquareSum {
    /// count.
    pub x: Address,
    /// f64 per block.
    pub partial: Address,
    /// How many.
    pub count: i64,
    /// The scale.
    pub scale: f32,
}

impl SquareSum {
    /// Blocks, and so numbers in `partial`.
    pub fn blocks(&self, number: Number) -> i32 {
        strided(self.count / i64::from(number.pack()), 256)
    }

    /// The launch.
    pub fn launch(&self, number: Number) -> Launch {
        let kernel = format!("square_sum_{}", number.suffix());
        Launch::new(FILE, kernel, [self.blocks(number), 1, 1], 256, self)
    }
}

/// The sum of parts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct PartSum {
    /// f64: the parts.
    pub partial: Address,
    /// One f32.
    pub sum: Address,
    /// How many parts.
    pub count: i32,
}

impl PartSum {
    /// The launch.
    pub fn launch(&self) -> Launch {
        Launch::new(FILE, "part_sum", [1, 1, 1], 1024, self)
    }
}

/// The factor that keeps a norm within its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct ClipFactor {
    /// f32: sums of squares.
    pub squares: Address,
    /// Two f32: the factor, the norm.
    pub factor: Address,
    /// How many sums.
    pub count: i32,
    /// The largest norm.
    pub bound: f32,
}

impl ClipFactor {
    /// The launch.
    pub fn launch(&self) -> Launch {
        Launch::new(FILE, "clip_factor", [1, 1, 1], 32, self)
    }
}

/// Buffers of the same size summed into one, in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct SumBuffers {
    /// The buffers, each of `count`.
    pub from: [Address; SUMMED],
    /// count; may be one of them.
    pub out: Address,
    /// Numbers of each.
    pub count: i64,
    /// How many buffers.
    pub buffers: i32,
    /// 1: all of them begin at multiples of 16 bytes.
    pub packed: i32,
}

/// So many buffers at most are summed at a time.
pub const SUMMED: usize = 32;

impl SumBuffers {
    /// The sum of up to `SUMMED` of them.
    pub fn of(buffers: &[Address], out: Address, count: usize) -> Self {
        let mut from = [Address::NULL; SUMMED];
        from[..buffers.len()].copy_from_slice(buffers);
        let packed = buffers.iter().chain([&out]).all(|at| at.0.is_multiple_of(16));
        Self { from, out, count: count as i64, buffers: buffers.len() as i32, packed: i32::from(packed) }
    }

    /// The launch.
    pub fn launch(&self, number: Number) -> Launch {
        let blocks = strided(self.count / i64::from(number.pack()), 256);
        let kernel = format!("sum_buffers_{}", number.suffix());
        let bytes = self.count as usize * number.size();
        let read = self.from[..self.buffers as usize].iter().map(|at| (*at, false));
        let touches = read.chain([(self.out, true)]).map(|(at, writes)| Touch { at, bytes, writes });
        Launch { touches: touches.collect(), ..Launch::new(FILE, kernel, [blocks, 1, 1], 256, self) }
    }
}

/// Numbers of one kind as the other.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Cast {
    /// count.
    pub from: Address,
    /// count.
    pub to: Address,
    /// How many.
    pub count: i64,
}

impl Cast {
    /// From `number` to the other kind.
    pub fn launch(&self, number: Number) -> Launch {
        let kernel = match number {
            Number::F32 => "cast_f32_bf16",
            Number::Bf16 => "cast_bf16_f32",
        };
        Launch::new(FILE, kernel, [strided(self.count / 4, 256), 1, 1], 256, self)
    }
}
