//! Dropout: the masks of the CPU, made by the kernels.

use super::super::{DropoutOps, Positions, SliceMut};
use super::Cuda;
use super::structs::int;
use trainwright_kernels::cuda::dropout::{DropOut, Drops};
use trainwright_kernels::dropout::Dropout;

impl DropoutOps for Cuda {
    fn drop_out(&self, x: SliceMut, dropout: &Dropout, width: usize, first: usize, positions: Positions) {
        let x = x.device();
        let kernel = DropOut {
            x: x.at,
            positions: self.tables.borrow_mut().positions(self, positions),
            drops: Drops::of(dropout, [first, 0, 0, 0]),
            rows: int(x.length / width),
            width: int(width),
            batch: int(positions.batch),
        };
        self.launch(&kernel.launch(x.number, self.gpu));
    }
}
