//! Rotary positions: pairs of columns of a head are rotated by an angle that grows with the position.
//!
//! Columns i and i + r/2 of the r rotated ones turn by p θ^(−2i/r) at position p, the halves' order of Hugging Face's
//! LLaMA. Source: Su et al. 2021, arXiv 2104.09864.

use crate::lanes::wide;
use crate::real::Real;
use crate::threads::Threads;

/// Cosines and sines for positions `first..first + count`.
#[derive(Debug, Clone)]
pub struct Rotary<T> {
    half: usize,
    first: usize,
    /// By position, then pair.
    cosines: Vec<T>,
    sines: Vec<T>,
}

/// Which heads of a row are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Length of a row.
    pub row: usize,
    /// The column where the first head begins.
    pub first: usize,
    /// How many heads.
    pub count: usize,
    /// Width of each.
    pub width: usize,
}

/// The direction of the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// By the positions' angles: forward.
    There,
    /// By the negative angles: the gradient.
    Back,
}

impl<T: Real> Rotary<T> {
    /// The angles of heads with `rotated` rotated columns and base θ.
    pub fn new(rotated: usize, base: f64, positions: std::ops::Range<usize>) -> Self {
        Self { first: positions.start, ..Self::of(rotated, base, positions) }
    }

    /// As `new`, of some positions: each then has the number of its place among them.
    pub fn of(rotated: usize, base: f64, positions: impl Iterator<Item = usize>) -> Self {
        let half = rotated / 2;
        let angles = positions.flat_map(|position| {
            (0..half).map(move |pair| position as f64 * base.powf(-2.0 * pair as f64 / rotated as f64))
        });
        let (cosines, sines) = angles.map(|angle| (T::of(angle.cos()), T::of(angle.sin()))).unzip();
        Self { half, first: 0, cosines, sines }
    }

    /// Rotates heads of every row of `x` by the position of the row.
    pub fn turn(
        &self,
        x: &mut [T],
        heads: Heads,
        position: impl Fn(usize) -> usize + Sync,
        turn: Turn,
        threads: Threads,
    ) {
        let half = self.half;
        threads.rows(x, heads.row, |first, x| {
            wide(|| {
                for (index, row) in x.chunks_exact_mut(heads.row).enumerate() {
                    let at = (position(first + index) - self.first) * half;
                    let (cosines, sines) = (&self.cosines[at..at + half], &self.sines[at..at + half]);
                    let rotated = &mut row[heads.first..heads.first + heads.count * heads.width];
                    for head in rotated.chunks_exact_mut(heads.width) {
                        let (low, high) = head.split_at_mut(half);
                        for pair in 0..half {
                            let (a, b, cosine) = (low[pair], high[pair], cosines[pair]);
                            let sine = if turn == Turn::There { sines[pair] } else { -sines[pair] };
                            low[pair] = a * cosine - b * sine;
                            high[pair] = b * cosine + a * sine;
                        }
                    }
                }
            });
        });
    }
}
