//! What kernels read again and again and the host makes: it is copied to the GPU once and stays.

use super::super::{Positions, Rotation};
use super::Cuda;
use std::collections::BTreeMap;
use std::ops::Range;
use trainwright_kernels::cuda::optimizer::Piece;
use trainwright_kernels::cuda::{Address, Number};

/// Positions and sequences of a rank's tokens.
type Places = (Vec<[usize; 2]>, usize);

#[derive(Default)]
pub(super) struct Tables {
    /// By columns, base and positions: cosines, sines.
    angles: BTreeMap<(usize, u64, usize), [Address; 2]>,
    positions: BTreeMap<Places, Address>,
    /// With the rows of the table: order, starts.
    sorted: BTreeMap<(Places, usize), [Address; 2]>,
    /// By the weights' address: what the pieces were made of, and how many they are.
    pieces: BTreeMap<u64, (Piece, Address, usize)>,
}

fn places(positions: Positions) -> Places {
    (positions.of.iter().map(|range| [range.start, range.end]).collect(), positions.batch)
}

impl Tables {
    /// Of all positions of a sequence, made in f64.
    pub fn angles(&mut self, device: &Cuda, rotation: &Rotation) -> [Address; 2] {
        let Rotation { rotated, base, sequence, .. } = *rotation;
        *self.angles.entry((rotated, base.to_bits(), sequence)).or_insert_with(|| {
            let half = rotated / 2;
            let angle = |index: usize| {
                let (position, pair) = (index / half, index % half);
                position as f64 * base.powf(-2.0 * pair as f64 / rotated as f64)
            };
            let all = || (0..sequence * half).map(angle);
            let put = |numbers: Vec<f32>| put(device, bytemuck::cast_slice(&numbers));
            [put(all().map(|x| x.cos() as f32).collect()), put(all().map(|x| x.sin() as f32).collect())]
        })
    }

    /// Each token's position.
    pub fn positions(&mut self, device: &Cuda, positions: Positions) -> Address {
        *self.positions.entry(places(positions)).or_insert_with(|| {
            let each = positions.of.iter().cloned().flatten();
            let all: Vec<u32> =
                each.flat_map(|position| std::iter::repeat_n(position as u32, positions.batch)).collect();
            put(device, bytemuck::cast_slice(&all))
        })
    }

    /// The tokens sorted by position, which they are, and where those of each of so many positions begin.
    pub fn sorted_positions(&mut self, device: &Cuda, positions: Positions, rows: usize) -> [Address; 2] {
        *self.sorted.entry((places(positions), rows)).or_insert_with(|| {
            let below = |row: usize| {
                let own = positions
                    .of
                    .iter()
                    .map(|range: &Range<usize>| row.clamp(range.start, range.end) - range.start);
                (own.sum::<usize>() * positions.batch) as u32
            };
            let starts: Vec<u32> = (0..=rows).map(below).collect();
            let order: Vec<u32> = (0..below(rows)).collect();
            [put(device, bytemuck::cast_slice(&order)), put(device, bytemuck::cast_slice(&starts))]
        })
    }

    /// A tensor's weights in pieces, as the optimizer's kernel wants them.
    pub fn pieces(&mut self, device: &Cuda, whole: Piece, count: usize) -> (Address, usize) {
        let known = self.pieces.get(&whole.weight.0).filter(|(known, ..)| known.bytes() == whole.bytes());
        if let Some((_, at, pieces)) = known {
            return (*at, *pieces);
        }
        let pieces = whole.cut(count);
        let bytes: Vec<u8> = pieces.iter().flat_map(Piece::bytes).collect();
        // Moments that were elsewhere for a while are at another address: the list is written anew.
        let old = self.pieces.get(&whole.weight.0).filter(|(.., known)| *known == pieces.len());
        let at = match old {
            Some((_, at, _)) => {
                device.run(|memory| memory.device.write(*at, &bytes));
                *at
            }
            None => put(device, &bytes),
        };
        self.pieces.insert(whole.weight.0, (whole, at, pieces.len()));
        (at, pieces.len())
    }
}

/// Bytes that stay.
fn put(device: &Cuda, bytes: &[u8]) -> Address {
    let far = device.far(bytes.len().div_ceil(4), Number::F32);
    device.run(|memory| memory.device.write(far.at, bytes));
    far.at
}
