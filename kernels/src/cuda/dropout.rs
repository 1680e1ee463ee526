//! Launches of dropout.cu, and the dropout of attention's probabilities.

use super::launch::{Address, Launch, Multiprocessors, Number, strided_ladder};
use crate::dropout::Dropout;

const FILE: &str = "dropout";

/// Dropout of the part of a tensor that is here.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Drops {
    /// Key of the mask.
    pub key: u64,
    /// An element is dropped with probability threshold / 2²⁴.
    pub threshold: u32,
    /// Factor of the elements that are kept.
    pub factor: f32,
    /// The first sequence, head, query and key of the part.
    pub first: [i32; 4],
}

impl Drops {
    /// Dropout of a part that begins at that sequence, head, query and key.
    pub fn of(dropout: &Dropout, first: [usize; 4]) -> Self {
        Self {
            key: dropout.key,
            threshold: dropout.threshold() as u32,
            factor: dropout.factor() as f32,
            first: first.map(|place| place as i32),
        }
    }
}

/// Dropout of rows of tokens; the mask depends on sequence and position.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct DropOut {
    /// rows × width, in place.
    pub x: Address,
    /// u32 per row.
    pub positions: Address,
    /// The mask; of `first` only the sequence counts.
    pub drops: Drops,
    /// Rows.
    pub rows: i32,
    /// Length of a row.
    pub width: i32,
    /// Sequences: row = index of the position · batch + sequence.
    pub batch: i32,
}

impl DropOut {
    /// All versions for its shape, the fastest last.
    pub fn ladder(&self, number: Number, gpu: Multiprocessors) -> Vec<Launch> {
        let fits = self.width % number.pack() == 0 && self.x.0.is_multiple_of(16);
        strided_ladder([FILE, "drop_out"], [self.rows, self.width], fits, (number, gpu), self)
    }

    /// The fastest version.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        self.ladder(number, gpu).pop().expect("the simple version does all")
    }
}
