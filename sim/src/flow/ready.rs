//! Which link to look at next: the one of the lowest level, since levels depend on lower levels only.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Links that wait to be looked at, by level; no link waits twice.
#[derive(Debug)]
pub(super) struct ReadyLinks {
    heap: BinaryHeap<Waiting>,
    waits: Vec<bool>,
}

#[derive(Debug)]
struct Waiting {
    level: f64,
    link: u32,
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
        self.heap.push(Waiting { level, link });
    }

    /// Takes the link of the lowest level; of equals, that of the lowest number.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let Waiting { link, .. } = self.heap.pop()?;
        self.waits[link as usize] = false;
        Some(link)
    }

    /// The lowest level that waits.
    pub(super) fn lowest(&self) -> f64 {
        self.heap.peek().map_or(f64::INFINITY, |waiting| waiting.level)
    }

    pub(super) fn clear(&mut self) {
        for Waiting { link, .. } in self.heap.drain() {
            self.waits[link as usize] = false;
        }
    }
}

/// The greatest is the one to take first.
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        other.level.total_cmp(&self.level).then(other.link.cmp(&self.link))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}
