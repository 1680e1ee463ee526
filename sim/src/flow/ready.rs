//! Which link to look at next: the one of the lowest level, since levels depend on lower levels only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Links that wait to be looked at, by level; no link waits twice.
#[derive(Debug)]
pub(super) struct ReadyLinks {
    /// The order of a level above the number of the link: one comparison of integers.
    heap: BinaryHeap<Reverse<u128>>,
    waits: Vec<bool>,
}

impl ReadyLinks {
    pub(super) fn new(links: usize) -> Self {
        Self { heap: BinaryHeap::new(), waits: vec![false; links] }
    }

    pub(super) fn waits(&self, link: u32) -> bool {
        self.waits[link as usize]
    }

    /// Adds a link that does not wait yet.
    pub(super) fn push(&mut self, level: f64, link: u32) {
        self.waits[link as usize] = true;
        self.heap.push(Reverse(u128::from(order(level)) << 32 | u128::from(link)));
    }

    /// Takes the link of the lowest level; of equals, that of the lowest number.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let Reverse(first) = self.heap.pop()?;
        let link = first as u32;
        self.waits[link as usize] = false;
        Some(link)
    }

    /// The lowest level that waits.
    pub(super) fn lowest(&self) -> f64 {
        self.heap.peek().map_or(f64::INFINITY, |Reverse(first)| level((first >> 32) as u64))
    }

    pub(super) fn clear(&mut self) {
        for Reverse(waiting) in self.heap.drain() {
            self.waits[waiting as u32 as usize] = false;
        }
    }
}

const SIGN: u64 = 1 << 63;

/// An integer that is greater for a greater level, as `f64::total_cmp` has it.
fn order(level: f64) -> u64 {
    let bits = level.to_bits();
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

/// The level of an order.
fn level(order: u64) -> f64 {
    f64::from_bits(if order & SIGN == 0 { !order } else { order & !SIGN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_level_comes_first() {
        let mut ready = ReadyLinks::new(8);
        let levels = [2.0, f64::INFINITY, 1e-300, -3.0, f64::NEG_INFINITY, 0.0, 2.0, -4.0];
        for (link, level) in levels.iter().enumerate() {
            ready.push(*level, link as u32);
        }
        for link in [4, 7, 3, 5, 2, 0, 6, 1] {
            assert_eq!(ready.lowest(), levels[link as usize]);
            assert_eq!(ready.pop(), Some(link));
        }
        assert_eq!((ready.pop(), ready.lowest()), (None, f64::INFINITY));
    }
}
