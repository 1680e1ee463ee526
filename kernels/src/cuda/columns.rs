//! Launches of columns.cu.

use super::launch::{Address, Launch, Multiprocessors, Number, strided_ladder};

const FILE: &str = "columns";

/// Copies columns of some rows to columns of others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Columns {
    /// The first column in the first row.
    pub from: Address,
    /// As `from`, of the destination.
    pub to: Address,
    /// Rows.
    pub rows: i32,
    /// How many columns.
    pub width: i32,
    /// Elements from one row to the next.
    pub from_row: i32,
    /// As `from_row`, of the destination.
    pub to_row: i32,
}

impl Columns {
    /// All versions for its shape, the fastest last.
    pub fn ladder(&self, number: Number, gpu: Multiprocessors) -> Vec<Launch> {
        let pack = number.pack();
        let fits = [self.width, self.from_row, self.to_row].iter().all(|width| width % pack == 0)
            && [self.from, self.to].iter().all(|address| address.0 % 16 == 0);
        strided_ladder([FILE, "copy_columns"], [self.rows, self.width], fits, (number, gpu), self)
    }

    /// The fastest version.
    pub fn launch(&self, number: Number, gpu: Multiprocessors) -> Launch {
        self.ladder(number, gpu).pop().expect("the simple version does all")
    }
}
