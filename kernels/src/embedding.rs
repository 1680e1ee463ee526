//! Look-up in a table whose rows are sharded, and the addition of the gradient to it.

use crate::lanes::wide;
use crate::real::Real;

/// Rows of a table: entry `first` and those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The first entry.
    pub first: usize,
    /// Length of a row.
    pub width: usize,
}

impl Rows {
    /// `out` = the row of each entry; zeros for entries of other shards.
    pub fn look_up<T: Real>(&self, table: &[T], entries: &[u32], out: &mut [T]) {
        let rows = table.len() / self.width;
        for (entry, out) in entries.iter().zip(out.chunks_exact_mut(self.width)) {
            match (*entry as usize).checked_sub(self.first).filter(|row| *row < rows) {
                Some(row) => out.copy_from_slice(&table[row * self.width..][..self.width]),
                None => out.fill(T::ZERO),
            }
        }
    }

    /// Adds each row of `gradient` to the table's row of its entry.
    pub fn add<T: Real>(&self, table: &mut [T], entries: &[u32], gradient: &[T]) {
        let rows = table.len() / self.width;
        for (entry, gradient) in entries.iter().zip(gradient.chunks_exact(self.width)) {
            let row = (*entry as usize).checked_sub(self.first).filter(|row| *row < rows);
            let Some(row) = row else { continue };
            let row = &mut table[row * self.width..][..self.width];
            wide(|| row.iter_mut().zip(gradient).for_each(|(row, gradient)| *row += *gradient));
        }
    }
}
