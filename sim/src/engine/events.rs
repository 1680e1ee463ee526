//! When ops are due, the earliest first; of equal times, in the order of the ops' numbers.

use super::OpId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use trainwright_spec::units::Picoseconds;

/// Events to come.
#[derive(Default)]
pub(super) struct Events(BinaryHeap<Reverse<u128>>);

/// Bits of an op's number.
const OP_BITS: u32 = u32::BITS;

impl Events {
    /// Adds an event. Time and op are one number, which is compared at once.
    pub fn push(&mut self, time: Picoseconds, op: OpId) {
        self.0.push(Reverse(u128::from(time.0) << OP_BITS | u128::from(op.0)));
    }

    /// When the next event is.
    pub fn next_time(&self) -> Option<Picoseconds> {
        self.0.peek().map(|Reverse(event)| Picoseconds((event >> OP_BITS) as u64))
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Picoseconds, OpId)> {
        let Reverse(event) = self.0.pop()?;
        Some((Picoseconds((event >> OP_BITS) as u64), OpId(event as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_op() {
        let all = [(7, 1), (u64::MAX, 0), (3, u32::MAX), (3, 2), (0, 9), (7, 0)];
        let mut events = Events::default();
        all.iter().for_each(|(time, op)| events.push(Picoseconds(*time), OpId(*op)));
        let mut sorted = all.to_vec();
        sorted.sort_unstable();
        assert_eq!(events.next_time(), Some(Picoseconds(0)));
        let popped = std::iter::from_fn(|| events.pop()).map(|(time, op)| (time.0, op.0));
        assert_eq!(popped.collect::<Vec<_>>(), sorted);
    }
}
