//! Launches of reduce.cu.

use super::launch::{Address, Launch, Multiprocessors, Number, Touch};

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

/// Rows of a share of a column's sum, at least.
const SHARE_ROWS: i32 = 64;

impl ColumnSum {
    /// Shares of the rows: as many as fill the GPU once, since the second launch reads a row of each.
    pub fn shares(&self, gpu: Multiprocessors) -> i32 {
        let fill = gpu.resident() / ((self.width + 255) / 256);
        ((self.rows + SHARE_ROWS - 1) / SHARE_ROWS).min(fill).max(1)
    }

    /// The sum of all rows: one launch if `shares` is 1, else two, with a row of f32 for each share at `partial`.
    pub fn launches(&self, number: Number, partial: Address, gpu: Multiprocessors) -> Vec<Launch> {
        let shares = self.shares(gpu);
        if shares == 1 {
            return vec![self.launch(number, 1)];
        }
        let first = ColumnSum { out: partial, add: 0, ..*self };
        let second = ColumnSum { x: partial, rows: shares, ..*self };
        vec![first.launch(number, shares), second.launch(Number::F32, 1)]
    }

    /// One launch over that many shares of the rows, with a row of `out` for each share.
    pub fn launch(&self, number: Number, shares: i32) -> Launch {
        let columns = (self.width + 255) / 256;
        Launch::new(FILE, format!("column_sum_{}", number.suffix()), [columns, shares, 1], 256, self)
    }
}

/// Elements of a `SquaresChunk`, as in reduce.cu.
pub const SQUARES_CHUNK: usize = 16_384;

/// At most `SQUARES_CHUNK` elements of one tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct SquaresChunk {
    /// f32: count, 16-byte aligned.
    pub x: Address,
    /// How many.
    pub count: i32,
    /// Factor of the chunk's sum.
    pub scale: f32,
}

impl SquaresChunk {
    /// The chunks of a tensor of `count` elements at `x`.
    pub fn cut(x: Address, count: usize, scale: f32) -> impl Iterator<Item = SquaresChunk> {
        (0..count).step_by(SQUARES_CHUNK).map(move |first| SquaresChunk {
            x: x.after(first * size_of::<f32>()),
            count: SQUARES_CHUNK.min(count - first) as i32,
            scale,
        })
    }

    /// Its bytes in the device's memory.
    pub fn bytes(&self) -> [u8; size_of::<SquaresChunk>()] {
        // SAFETY: its fields fill it, so each of its bytes is one.
        unsafe { std::mem::transmute(*self) }
    }
}

/// Σ x² of each chunk times its scale, of any number of tensors in one launch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct SquareSums {
    /// `SquaresChunk`s.
    pub chunks: Address,
    /// f64 per chunk.
    pub partial: Address,
}

impl SquareSums {
    /// The launch over that many chunks, at least one.
    pub fn launch(&self, chunks: usize) -> Launch {
        Launch::new(FILE, "square_sums", [chunks as i32, 1, 1], 256, self)
    }
}

/// Two sums of parts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct PartSums {
    /// f64: the parts.
    pub partial: Address,
    /// Two f32.
    pub sums: Address,
    /// Sum i is that of the parts from `starts[i]` to `starts[i + 1]`.
    pub starts: [i32; 3],
}

impl PartSums {
    /// The launch.
    pub fn launch(&self) -> Launch {
        Launch::new(FILE, "part_sums", [2, 1, 1], 1024, self)
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

/// The sum of buffers of one size, in the order of the list.
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
    /// 1: all of them are 16-byte aligned.
    pub packed: i32,
}

/// The most buffers of one launch.
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
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        let blocks = gpu.strided(self.count / i64::from(number.pack()), 256);
        let kernel = format!("sum_buffers_{}", number.suffix());
        let bytes = self.count as usize * number.size();
        let read = self.from[..self.buffers as usize].iter().map(|at| (*at, false));
        let touches = read.chain([(self.out, true)]).map(|(at, writes)| Touch { at, bytes, writes });
        Launch { touches: touches.collect(), ..Launch::new(FILE, kernel, [blocks, 1, 1], 256, self) }
    }
}

/// A copy in the other number type.
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
    /// From `number` to the other type.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        let kernel = match number {
            Number::F32 => "cast_f32_bf16",
            Number::Bf16 => "cast_bf16_f32",
        };
        Launch::new(FILE, kernel, [gpu.strided(self.count / 4, 256), 1, 1], 256, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_rows_fill_a_gpu_once() {
        let of = |rows, width, multiprocessors| {
            ColumnSum { rows, width, ..ColumnSum::default() }.shares(Multiprocessors(multiprocessors))
        };
        // 1600 columns are 7 blocks; 132 multiprocessors hold 1056 of them and 108 hold 864.
        assert_eq!([of(16_384, 1600, 132), of(16_384, 1600, 108)], [150, 123]);
        // A share has at least 64 rows; wide matrices fill the GPU with one.
        assert_eq!([of(200, 1600, 132), of(64, 1600, 132), of(16_384, 50_304, 3)], [4, 1, 1]);
    }

    #[test]
    fn chunks_cover_a_tensor() {
        let chunks: Vec<_> = SquaresChunk::cut(Address(256), SQUARES_CHUNK + 3, 0.5).collect();
        // 16,384 f32 are 65,536 bytes.
        let of = |x, count| SquaresChunk { x: Address(x), count, scale: 0.5 };
        assert_eq!(chunks, [of(256, 16_384), of(256 + 65_536, 3)]);
        assert_eq!(SquaresChunk::cut(Address(256), 0, 1.0).count(), 0);
    }
}
