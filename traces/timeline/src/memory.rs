//! How much memory a rank holds from one instant to the next.

use crate::timeline::{MemoryChange, Timeline};
use trainwright_spec::program::MemoryKind;
use trainwright_spec::units::{Bytes, Picoseconds};

/// Memory of each kind, in the order of `MemoryKind::ALL`.
pub type MemoryByKind = [Bytes; MemoryKind::ALL.len()];

/// The memory of a rank from an instant until the next change.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// From the start of the step.
    pub time: Picoseconds,
    /// By kind.
    pub held: MemoryByKind,
}

impl Level {
    /// The memory of all kinds together.
    pub fn total(&self) -> Bytes {
        self.held.into_iter().sum()
    }
}

/// The memory changes of one rank, by time.
pub fn changes_of(timeline: &Timeline, rank: usize) -> &[MemoryChange] {
    let first = timeline.memory.partition_point(|change| (change.rank as usize) < rank);
    let count = timeline.memory[first..].partition_point(|change| change.rank as usize == rank);
    &timeline.memory[first..first + count]
}

/// The levels of one rank's memory, by time.
///
/// The changes of one instant count together: an op that ends there gives its memory to one that starts there, in
/// whichever order they are listed. Levels are rounded to bytes, so that rounding errors of sums are no change.
pub fn levels(changes: &[MemoryChange]) -> impl Iterator<Item = Level> {
    let mut held = MemoryByKind::default();
    changes.chunk_by(|a, b| a.time == b.time).map(move |instant| {
        for change in instant {
            held[change.kind as usize] += change.bytes;
        }
        // Adding zero turns a rounded -0.0 into 0.0.
        Level { time: instant[0].time, held: held.map(|bytes| Bytes::new(bytes.get().round() + 0.0)) }
    })
}
