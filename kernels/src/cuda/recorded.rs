//! The calls of a device as data.

use super::attention::{Attention, Pass};
use super::collective::Collective;
use super::eight::{EightOperands, EightProduct};
use super::launch::{Address, Launch, Number};
use super::product::{Operands, Product};

/// One thing that a device was told.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// To take the next ones on that stream.
    Select(usize),
    /// To note a moment. They are counted from 0.
    Moment,
    /// To wait for the moment of that number.
    Wait(usize),
    /// To copy so many bytes.
    Copy {
        /// To there.
        to: Address,
        /// From there.
        from: Address,
        /// So many.
        bytes: usize,
    },
    /// To write zeros.
    Zero {
        /// There.
        at: Address,
        /// So many bytes.
        bytes: usize,
    },
    /// To run a kernel.
    Launch(Launch),
    /// To multiply.
    Multiply(Product, Operands),
    /// To multiply numbers of 8 bits.
    MultiplyEight(EightProduct, EightOperands),
    /// To do attention by a library.
    Attend(Attention, Pass, Address),
    /// To take part in a collective of a group.
    Collective(usize, Collective, Number),
}
