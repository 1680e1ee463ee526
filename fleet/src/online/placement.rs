//! Which GPUs a job gets: it may take any, but those of one node are nearer to each other.

use crate::instance::NodeKind;

/// How a policy wants jobs to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// On the fewest nodes, and there on the fullest that have room.
    Tightest,
    /// Always from the node with the most free GPUs, as the simulator of Pollux does it for Tiresias and Optimus.
    Emptiest,
}

/// Free GPUs of each node, ascending; GPUs are counted over all nodes.
#[derive(Debug, Clone)]
pub struct Free {
    nodes: Vec<Vec<usize>>,
    /// The first node of each kind, and the end of the last one's.
    first: Vec<usize>,
    /// The node of each GPU.
    node_of: Vec<usize>,
}

impl Free {
    /// All GPUs are free.
    pub fn new(kinds: &[NodeKind]) -> Self {
        let (mut nodes, mut first, mut node_of) = (Vec::new(), vec![0], Vec::new());
        for kind in kinds {
            for _ in 0..kind.nodes {
                let start = node_of.len();
                node_of.extend(std::iter::repeat_n(nodes.len(), kind.gpus));
                nodes.push((start..start + kind.gpus).collect());
            }
            first.push(nodes.len());
        }
        Self { nodes, first, node_of }
    }

    /// Takes GPUs of a kind, of which enough are free.
    pub fn take(&mut self, kind: usize, gpus: usize, packing: Packing) -> Vec<usize> {
        let mut taken = Vec::with_capacity(gpus);
        while taken.len() < gpus {
            let left = gpus - taken.len();
            let free = |node: &usize| self.nodes[*node].len();
            let nodes = || self.first[kind]..self.first[kind + 1];
            let tight = match packing {
                Packing::Tightest => nodes().filter(|node| free(node) >= left).min_by_key(free),
                Packing::Emptiest => None,
            };
            let emptiest = || nodes().max_by_key(|node| (free(node), std::cmp::Reverse(*node)));
            let node = tight.or_else(emptiest).expect("a kind has nodes");
            assert!(!self.nodes[node].is_empty(), "a policy grants no more GPUs than there are");
            let many = left.min(self.nodes[node].len());
            taken.extend(self.nodes[node].drain(..many));
        }
        taken.sort_unstable();
        taken
    }

    /// Gives GPUs back.
    pub fn give(&mut self, gpus: &[usize]) {
        for &gpu in gpus {
            let node = &mut self.nodes[self.node_of[gpu]];
            let place = node.partition_point(|other| *other < gpu);
            node.insert(place, gpu);
        }
    }

    /// On how many nodes GPUs are.
    pub fn nodes_of(&self, gpus: &[usize]) -> usize {
        let mut nodes: Vec<usize> = gpus.iter().map(|gpu| self.node_of[*gpu]).collect();
        nodes.dedup();
        nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Free, NodeKind, Packing};

    #[test]
    fn packings_by_hand() {
        let kinds = [NodeKind { name: "n".into(), nodes: 3, gpus: 4 }];
        let mut free = Free::new(&kinds);
        assert_eq!(free.take(0, 2, Packing::Tightest), [0, 1]);
        // The fullest node with room.
        assert_eq!(free.take(0, 1, Packing::Tightest), [2]);
        // Six do not fit on one node: an empty one, then the fullest with room for the other two.
        assert_eq!(free.take(0, 6, Packing::Tightest), [4, 5, 6, 7, 8, 9]);
        free.give(&[4, 5, 6, 7, 8, 9]);
        assert_eq!(free.take(0, 1, Packing::Emptiest), [4]);
        assert_eq!(free.take(0, 1, Packing::Emptiest), [8]);
        assert_eq!(free.nodes_of(&[2, 4, 5]), 2);
    }
}
