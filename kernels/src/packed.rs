//! Products of few rows with a weight that is read once, as generating a token needs them: what bounds them is the memory
//! that the weight comes from, so it may be stored in fewer bits.
//!
//! An output is the sum over 16 lanes, each with the products of every 16th column in ascending order, whatever the number of
//! rows and threads: a row's outputs have the same bits alone and among others.

use crate::lanes::{LANES, join};
use crate::threads::Threads;

/// The weight of a product, (outputs × inputs), row after row.
#[derive(Debug, Clone, Copy)]
pub enum WeightRows<'a> {
    /// 32 bits.
    F32(&'a [f32]),
    /// The upper 16 bits of 32.
    Bf16(&'a [u16]),
    /// 8 bits, with the scale of each row.
    Int8(&'a [i8], &'a [f32]),
}

/// A weight in fewer bits than 32.
#[derive(Debug, Clone, PartialEq)]
pub enum PackedWeight {
    /// Each number rounded to the nearest bf16, ties to even.
    Bf16(Vec<u16>),
    /// Row r is `scales[r]` · `rows`; every scale is max |w| / 127 of a row, so the error is at most half of it.
    Int8 {
        /// The numbers from −127 to 127.
        rows: Vec<i8>,
        /// A scale for each row.
        scales: Vec<f32>,
    },
}

/// The largest number of 8 bits with a sign that has a negative.
const LARGEST: f32 = 127.0;

/// The scale of a row of numbers: that of its largest.
pub fn int8_scale(row: &[f32]) -> f32 {
    row.iter().fold(0.0, |largest: f32, number| largest.max(number.abs())) / LARGEST
}

impl PackedWeight {
    /// Rounds to bf16.
    pub fn bf16(rows: &[f32]) -> Self {
        let round = |number: &f32| {
            let bits = number.to_bits();
            (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
        };
        PackedWeight::Bf16(rows.iter().map(round).collect())
    }

    /// Rounds to multiples of a scale for each row.
    ///
    /// # Panics
    /// If there is not a scale for each row of equal length.
    pub fn int8(rows: &[f32], scales: Vec<f32>) -> Self {
        let width = rows.len() / scales.len().max(1);
        assert_eq!(width * scales.len(), rows.len(), "{} scales of {} numbers", scales.len(), rows.len());
        let each = rows.chunks_exact(width.max(1)).zip(&scales).flat_map(|(row, scale)| {
            let inverse = if *scale > 0.0 { 1.0 / scale } else { 0.0 };
            row.iter().map(move |number| (number * inverse).round() as i8)
        });
        PackedWeight::Int8 { rows: each.collect(), scales }
    }

    /// The rows to multiply by.
    pub fn rows(&self) -> WeightRows<'_> {
        match self {
            PackedWeight::Bf16(rows) => WeightRows::Bf16(rows),
            PackedWeight::Int8 { rows, scales } => WeightRows::Int8(rows, scales),
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        match self {
            PackedWeight::Bf16(rows) => 2 * rows.len(),
            PackedWeight::Int8 { rows, scales } => rows.len() + 4 * scales.len(),
        }
    }
}

impl<'a> WeightRows<'a> {
    /// How many numbers.
    pub fn len(&self) -> usize {
        match self {
            WeightRows::F32(rows) => rows.len(),
            WeightRows::Bf16(rows) => rows.len(),
            WeightRows::Int8(rows, _) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some rows of `width` numbers.
    pub fn part(self, rows: std::ops::Range<usize>, width: usize) -> Self {
        let range = rows.start * width..rows.end * width;
        match self {
            WeightRows::F32(all) => WeightRows::F32(&all[range]),
            WeightRows::Bf16(all) => WeightRows::Bf16(&all[range]),
            WeightRows::Int8(all, scales) => WeightRows::Int8(&all[range], &scales[rows]),
        }
    }

    /// A row, in 32 bits.
    pub fn read(self, row: usize, to: &mut [f32]) {
        let width = to.len();
        match self.part(row..row + 1, width) {
            WeightRows::F32(row) => to.copy_from_slice(row),
            WeightRows::Bf16(row) => to.iter_mut().zip(row).for_each(|(to, number)| *to = number.widened()),
            WeightRows::Int8(row, scales) => {
                to.iter_mut().zip(row).for_each(|(to, number)| *to = number.widened() * scales[0]);
            }
        }
    }

    /// `out` = `x` · weightᵀ + `bias`: `x` has rows of `width` numbers, `out` as many rows of a number for each row of the
    /// weight.
    ///
    /// # Panics
    /// If the sizes do not fit each other.
    pub fn multiply(self, out: &mut [f32], x: &[f32], width: usize, bias: Option<&[f32]>, threads: Threads) {
        let (outputs, rows) = (self.len() / width, x.len() / width);
        assert_eq!(rows * outputs, out.len(), "{rows} rows of {outputs} outputs");
        let share = outputs.div_ceil(threads.count()).next_multiple_of(TILE);
        if rows == 1 {
            return threads.chunks(out, share, |first, out| {
                self.part(first..first + out.len(), width).one_thread(out, x, width);
                add_bias(out, bias.map(|bias| &bias[first..]));
            });
        }
        let parts = threads.each(outputs.div_ceil(share), |part| {
            let range = part * share..outputs.min((part + 1) * share);
            let mut out = vec![0.0; rows * range.len()];
            self.part(range, width).one_thread(&mut out, x, width);
            out
        });
        for (part, made) in parts.iter().enumerate() {
            let columns = made.len() / rows;
            for (row, made) in out.chunks_exact_mut(outputs).zip(made.chunks_exact(columns)) {
                let row = &mut row[part * share..part * share + columns];
                row.copy_from_slice(made);
                add_bias(row, bias.map(|bias| &bias[part * share..]));
            }
        }
    }

    fn one_thread(self, out: &mut [f32], x: &[f32], width: usize) {
        match self {
            WeightRows::F32(weight) => Products { out, x, width, weight }.run(),
            WeightRows::Bf16(weight) => Products { out, x, width, weight }.run(),
            WeightRows::Int8(weight, scales) => {
                Products { out: &mut *out, x, width, weight }.run();
                for row in out.chunks_exact_mut(scales.len().max(1)) {
                    row.iter_mut().zip(scales).for_each(|(out, scale)| *out *= scale);
                }
            }
        }
    }
}

fn add_bias(out: &mut [f32], bias: Option<&[f32]>) {
    if let Some(bias) = bias {
        out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
    }
}

/// A stored number.
trait Stored: Copy + Sync {
    /// In 32 bits; of 8 bits without the scale.
    fn widened(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }
}

impl Stored for u16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

impl Stored for i8 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from(self)
    }
}

/// Rows of the weight that stay in the cache while all rows of x pass.
const TILE: usize = 32;

/// Rows of the weight whose sums are in registers at once.
const OUTPUTS: usize = 4;

/// x · weightᵀ by one thread. A closure of this size would not be inlined where the widest vectors are known.
struct Products<'a, W> {
    out: &'a mut [f32],
    x: &'a [f32],
    width: usize,
    weight: &'a [W],
}

impl<W: Stored> Products<'_, W> {
    fn run(self) {
        pulp::Arch::new().dispatch(self);
    }
}

impl<W: Stored> pulp::NullaryFnOnce for Products<'_, W> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { out, x, width, weight } = self;
        products(out, x, width, weight);
    }
}

#[inline(always)]
fn products<W: Stored>(out: &mut [f32], x: &[f32], width: usize, weight: &[W]) {
    let (rows, outputs) = (x.len() / width, weight.len() / width);
    let weight_row = |row: usize| &weight[row * width..(row + 1) * width];
    for tile in (0..outputs).step_by(TILE) {
        let end = outputs.min(tile + TILE);
        for row in 0..rows {
            let x = &x[row * width..(row + 1) * width];
            let out = &mut out[row * outputs..(row + 1) * outputs];
            let mut output = tile;
            while output + OUTPUTS <= end {
                let rows = [
                    weight_row(output),
                    weight_row(output + 1),
                    weight_row(output + 2),
                    weight_row(output + 3),
                ];
                out[output..output + OUTPUTS].copy_from_slice(&dots(x, rows));
                output += OUTPUTS;
            }
            for (at, out) in out[output..end].iter_mut().enumerate() {
                *out = dots(x, [weight_row(output + at)])[0];
            }
        }
    }
}

/// The products of a row of x with some rows of a weight.
#[inline(always)]
fn dots<W: Stored, const O: usize>(x: &[f32], weight: [&[W]; O]) -> [f32; O] {
    let mut lanes = [[0.0f32; LANES]; O];
    let chunks = x.len() / LANES;
    for chunk in 0..chunks {
        let at = chunk * LANES;
        let numbers = &x[at..at + LANES];
        for output in 0..O {
            let stored = &weight[output][at..at + LANES];
            for lane in 0..LANES {
                lanes[output][lane] = numbers[lane].mul_add(stored[lane].widened(), lanes[output][lane]);
            }
        }
    }
    for at in chunks * LANES..x.len() {
        for output in 0..O {
            let sum = &mut lanes[output][at - chunks * LANES];
            *sum = x[at].mul_add(weight[output][at].widened(), *sum);
        }
    }
    let mut sums = [0.0; O];
    for output in 0..O {
        sums[output] = join(lanes[output], |a, b| a + b);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|at| (seed + 1.7 * at as f32).sin()).collect()
    }

    /// The formula, in 64 bits.
    fn expected(x: &[f32], width: usize, weight: &[f32], bias: &[f32]) -> Vec<f64> {
        let dot = |x: &[f32], row: &[f32]| -> f64 {
            x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
        };
        let rows = x.chunks_exact(width);
        rows.flat_map(|x| {
            weight.chunks_exact(width).zip(bias).map(move |(row, bias)| dot(x, row) + f64::from(*bias))
        })
        .collect()
    }

    #[test]
    fn products_are_those_of_the_formula_and_a_row_s_do_not_depend_on_others_or_threads() {
        for (rows, outputs, width) in [(1, 1, 1), (1, 37, 40), (3, 33, 16), (4, 8, 48), (9, 70, 53)] {
            let (x, weight, bias) =
                (numbers(rows * width, 0.3), numbers(outputs * width, 0.9), numbers(outputs, 2.0));
            let scales: Vec<f32> = weight.chunks_exact(width).map(int8_scale).collect();
            let packed = [PackedWeight::bf16(&weight), PackedWeight::int8(&weight, scales)];
            for weight in [WeightRows::F32(&weight), packed[0].rows(), packed[1].rows()] {
                let mut stored = vec![0.0; outputs * width];
                stored.chunks_exact_mut(width).enumerate().for_each(|(row, to)| weight.read(row, to));
                let mut out = vec![0.0; rows * outputs];
                weight.multiply(&mut out, &x, width, Some(&bias), Threads::ONE);
                for (found, expected) in out.iter().zip(expected(&x, width, &stored, &bias)) {
                    // 53 products of numbers up to 1, each rounded to 24 bits.
                    assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
                }
                for threads in [2, 5] {
                    let mut by_several = vec![0.0; rows * outputs];
                    weight.multiply(&mut by_several, &x, width, Some(&bias), Threads::new(threads));
                    assert_eq!(by_several, out, "{threads} threads");
                }
                for (x, expected) in x.chunks_exact(width).zip(out.chunks_exact(outputs)) {
                    let mut alone = vec![0.0; outputs];
                    weight.multiply(&mut alone, x, width, Some(&bias), Threads::ONE);
                    assert_eq!(alone, expected);
                }
            }
        }
    }

    #[test]
    fn a_stored_number_is_at_most_half_a_unit_beside_its_own() {
        let weight = numbers(7 * 40, 0.1);
        let scales: Vec<f32> = weight.chunks_exact(40).map(int8_scale).collect();
        let packed = [PackedWeight::bf16(&weight), PackedWeight::int8(&weight, scales.clone())];
        assert_eq!(packed.each_ref().map(PackedWeight::bytes), [2 * 280, 280 + 4 * 7]);
        for (row, numbers) in weight.chunks_exact(40).enumerate() {
            let mut stored = [[0.0; 40]; 2];
            packed.iter().zip(&mut stored).for_each(|(packed, to)| packed.rows().read(row, to));
            for (at, number) in numbers.iter().enumerate() {
                // bf16 has 8 bits of significand: half a unit is 2⁻⁹ of the power of two, so at most 2⁻⁸ / 2 of the number.
                assert!((stored[0][at] - number).abs() <= number.abs() / 256.0);
                assert!((stored[1][at] - number).abs() <= 0.5001 * scales[row], "{number}");
            }
        }
        // A row of zeros has the scale 0.
        assert_eq!(
            PackedWeight::int8(&[0.0; 3], vec![int8_scale(&[0.0; 3])]),
            PackedWeight::Int8 { rows: vec![0; 3], scales: vec![0.0] }
        );
    }
}
