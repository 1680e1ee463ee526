//! Which of many queues is due first: a tournament of times, kept from the leaves up.
//!
//! A change climbs only as far as the winner changes, and a change far from the front seldom does.

use trainwright_spec::units::Picoseconds;

/// The time of a queue that is not due.
pub(super) const NEVER: Picoseconds = Picoseconds(u64::MAX);

/// When each queue is due, and the first of them.
#[derive(Debug)]
pub(super) struct EarliestEnd {
    /// Node i is the earlier of nodes 2i and 2i + 1; the leaves are the upper half.
    nodes: Vec<Picoseconds>,
}

impl EarliestEnd {
    /// Nothing is due.
    pub(super) fn new(queues: usize) -> Self {
        Self { nodes: vec![NEVER; 2 * queues.next_power_of_two()] }
    }

    /// Makes room for at least `queues` queues.
    pub(super) fn grow(&mut self, queues: usize) {
        let leaves = self.nodes.len() / 2;
        if queues <= leaves {
            return;
        }
        let old = std::mem::replace(self, Self::new(queues));
        for (queue, time) in old.nodes[leaves..].iter().enumerate() {
            self.set(queue as u32, *time);
        }
    }

    /// Sets when a queue is due.
    pub(super) fn set(&mut self, queue: u32, time: Picoseconds) {
        let mut node = self.nodes.len() / 2 + queue as usize;
        self.nodes[node] = time;
        while node > 1 {
            let winner = self.nodes[node].min(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == winner {
                return;
            }
            self.nodes[node] = winner;
        }
    }

    /// The time of the queue that is due first, or `NEVER`.
    pub(super) fn time(&self) -> Picoseconds {
        self.nodes[1]
    }

    /// The queue that is due first: of equals, that of the lowest number.
    pub(super) fn queue(&self) -> u32 {
        let leaves = self.nodes.len() / 2;
        let mut node = 1;
        while node < leaves {
            node *= 2;
            if self.nodes[node] > self.nodes[node + 1] {
                node += 1;
            }
        }
        (node - leaves) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a scan of a plain list, over changes that a linear congruence draws.
    #[test]
    fn the_tournament_finds_the_first_of_a_list() {
        let mut ends = EarliestEnd::new(5);
        ends.grow(37);
        let mut list = vec![NEVER; 37];
        let mut state = 1u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let queue = (state >> 33) as usize % list.len();
            let time = if state >> 62 == 0 { NEVER } else { Picoseconds((state >> 20) % 50) };
            list[queue] = time;
            ends.set(queue as u32, time);
            let first = *list.iter().min().unwrap();
            assert_eq!(ends.time(), first);
            if first != NEVER {
                assert_eq!(ends.queue() as usize, list.iter().position(|time| *time == first).unwrap());
            }
        }
    }
}
