//! The calls of a device as data.

use super::attention::{Attention, Pass};
use super::collective::Collective;
use super::fp8::{Fp8Operands, Fp8Product};
use super::launch::{Address, Launch, Number};
use super::product::{Operands, Product};

/// One call of a `Device` that enqueues work or orders streams.
#[derive(Debug, Clone, PartialEq)]
pub enum Recorded {
    /// The stream of the calls that follow.
    Select(usize),
    /// `record_event`. Events are counted from 0.
    Event,
    /// `wait` for the event of that number.
    Wait(usize),
    /// `copy`.
    Copy {
        /// Destination.
        to: Address,
        /// Source.
        from: Address,
        /// Length.
        bytes: usize,
    },
    /// `zero`.
    Zero {
        /// Destination.
        at: Address,
        /// Length.
        bytes: usize,
    },
    /// `launch`.
    Launch(Launch),
    /// `multiply`.
    Multiply(Product, Operands),
    /// `multiply_fp8`.
    MultiplyFp8(Fp8Product, Fp8Operands),
    /// `attend`, with its workspace.
    Attend(Attention, Pass, Address),
    /// `collective` in the group of that number.
    Collective(usize, Collective, Number),
}
