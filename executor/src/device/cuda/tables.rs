//! What kernels read again and again and the host makes: it is copied to the GPU once and stays.

use super::super::{Positions, Rotation};
use super::Cuda;
use std::collections::BTreeMap;
use std::ops::Range;
use trainwright_kernels::cuda::optimizer::{Chunk, TrustRatios};
use trainwright_kernels::cuda::reduce::SquaresChunk;
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
    /// By the first one's address: tensors that are updated together, and what was made of them.
    together: BTreeMap<u64, (Vec<ListedTensor>, Together)>,
    /// Tensors whose squares were summed last.
    squared: Option<Squared>,
}

/// Tensors of two sums with their scales: where each is, and how many numbers it has.
type Scaled = [Vec<(Address, usize, f32)>; 2];

/// What was made of some.
struct Squared {
    of: Scaled,
    /// `SquaresChunk`s, and room for how many of them.
    pieces: Address,
    room: usize,
    /// How many pieces each sum has.
    counts: [usize; 2],
}

/// A tensor, how many numbers it has and whether LAMB and LARS scale its step.
type ListedTensor = (Chunk, usize, bool);

/// Tensors as the optimizer's kernels want them: first those whose steps are scaled. The others are one behind them, which
/// has no norm and so the ratio 1.
#[derive(Debug, Clone)]
pub(super) struct Together {
    /// All tensors' pieces.
    pub pieces: Address,
    /// How many.
    pub count: usize,
    /// Which of them are each tensor's.
    pub parts: Vec<Range<usize>>,
    /// A number for each scaled tensor and one for all others.
    pub ratios: Address,
    scaled: usize,
    starts: Address,
    decays: Address,
}

impl Together {
    /// What makes the ratios, but for where the squares are.
    pub fn trust_ratios(&self) -> TrustRatios {
        let Self { ratios, scaled, starts, decays, .. } = *self;
        TrustRatios { starts, decays, ratios, tensors: scaled as i32 + 1, ..TrustRatios::default() }
    }
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

    /// Addresses of the tokens' order by position, which is theirs, and of where each of `rows` positions begins.
    pub fn sorted_positions(&mut self, device: &Cuda, positions: Positions, rows: usize) -> [Address; 2] {
        *self.sorted.entry((places(positions), rows)).or_insert_with(|| {
            let below = |row: usize| {
                let tokens = positions
                    .of
                    .iter()
                    .map(|range: &Range<usize>| row.clamp(range.start, range.end) - range.start);
                (tokens.sum::<usize>() * positions.batch) as u32
            };
            let starts: Vec<u32> = (0..=rows).map(below).collect();
            let order: Vec<u32> = (0..below(rows)).collect();
            [put(device, bytemuck::cast_slice(&order)), put(device, bytemuck::cast_slice(&starts))]
        })
    }

    /// The pieces of tensors whose squares are summed, and how many of them either sum has. The list is written anew only when
    /// tensors or their places have changed.
    pub fn squared(&mut self, device: &Cuda, of: Scaled) -> (Address, [usize; 2]) {
        if let Some(known) = self.squared.as_ref().filter(|known| known.of == of) {
            return (known.pieces, known.counts);
        }
        let cut = |all: &Vec<(Address, usize, f32)>| -> Vec<SquaresChunk> {
            all.iter().flat_map(|(at, count, scale)| SquaresChunk::cut(*at, *count, *scale)).collect()
        };
        let both = of.each_ref().map(cut);
        let counts = both.each_ref().map(Vec::len);
        let bytes: Vec<u8> = both.iter().flatten().flat_map(SquaresChunk::bytes).collect();
        let count = counts[0] + counts[1];
        let (pieces, room) = match self.squared.as_ref().filter(|known| known.room >= count) {
            Some(known) => {
                device.run(|memory| memory.device.write(known.pieces, &bytes));
                (known.pieces, known.room)
            }
            None => (put(device, &bytes), count),
        };
        self.squared = Some(Squared { of, pieces, room, counts });
        (pieces, counts)
    }

    /// Tensors in pieces.
    pub fn together(&mut self, device: &Cuda, tensors: Vec<ListedTensor>) -> Together {
        let first = tensors[0].0.weight.0;
        let known = self.together.get(&first);
        if let Some((_, made)) = known.filter(|(known, _)| *known == tensors) {
            return made.clone();
        }
        let (mut pieces, mut starts, mut decays) = (Vec::new(), vec![0], Vec::new());
        let mut parts = vec![0..0; tensors.len()];
        let of = |scaled: bool| tensors.iter().enumerate().filter(move |(_, tensor)| tensor.2 == scaled);
        for (index, (tensor, length, is_scaled)) in of(true).chain(of(false)) {
            let at = pieces.len();
            pieces.extend(Chunk { tensor: decays.len() as i32, ..*tensor }.cut(*length));
            parts[index] = at..pieces.len();
            if *is_scaled {
                starts.push(pieces.len() as u32);
                decays.push(tensor.decay);
            }
        }
        let scaled = decays.len();
        starts.push(starts[scaled]);
        decays.push(0.0);
        let bytes: Vec<u8> = pieces.iter().flat_map(Chunk::bytes).collect();
        let like = |made: &Together| made.count == pieces.len() && made.scaled == scaled;
        let made = match known.filter(|(_, made)| like(made)) {
            // Moments that were elsewhere for a while are at another address: the list is written anew.
            Some((_, old)) => {
                let write = |at, bytes| device.run(|memory| memory.device.write(at, bytes));
                write(old.pieces, &bytes);
                write(old.starts, bytemuck::cast_slice(&starts));
                write(old.decays, bytemuck::cast_slice(&decays));
                Together { parts, ..old.clone() }
            }
            None => Together {
                pieces: put(device, &bytes),
                count: pieces.len(),
                parts,
                ratios: put(device, bytemuck::cast_slice(&decays)),
                scaled,
                starts: put(device, bytemuck::cast_slice(&starts)),
                decays: put(device, bytemuck::cast_slice(&decays)),
            },
        };
        self.together.insert(first, (tensors, made.clone()));
        made
    }
}

/// Bytes that stay.
fn put(device: &Cuda, bytes: &[u8]) -> Address {
    let on_device = device.allocate(bytes.len().div_ceil(4), Number::F32);
    device.run(|memory| memory.device.write(on_device.at, bytes));
    on_device.at
}
