//! Clusters whose nodes are of several kinds.

use super::{Cluster, Node, Others};
use crate::precision::Precision;
use crate::units::{Bytes, FlopsPerSecond};

impl Cluster {
    /// The kinds of its nodes, each with how many there are, in the order in which they stand.
    pub fn kinds(&self) -> impl Iterator<Item = (usize, &Node)> {
        let others: usize = self.others.iter().map(|others| others.nodes).sum();
        let first = (self.nodes.saturating_sub(others), &self.node);
        std::iter::once(first).chain(self.others.iter().map(|others| (others.nodes, &others.node)))
    }

    /// Whether there are several kinds.
    pub fn is_mixed(&self) -> bool {
        !self.others.is_empty()
    }

    /// The kind of the node that a global rank is on, counted from 0.
    pub fn kind_of(&self, rank: usize) -> usize {
        let index = rank / self.node.gpus.value;
        let mut end = 0;
        let past = |(nodes, _): &(usize, &Node)| {
            end += nodes;
            end <= index
        };
        self.kinds().take_while(past).count().min(self.others.len())
    }

    /// A node of a kind.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn node_of(&self, kind: usize) -> &Node {
        match kind.checked_sub(1) {
            None => &self.node,
            Some(other) => &self.others[other].node,
        }
    }

    /// The nodes of a kind alone.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn only(&self, kind: usize) -> Cluster {
        let (nodes, node) = self.kinds().nth(kind).expect("a kind of this cluster");
        Cluster { nodes, node: node.clone(), others: Vec::new(), ..self.clone() }
    }

    /// A node of each kind, to change them all.
    pub fn each_kind_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        std::iter::once(&mut self.node).chain(self.others.iter_mut().map(|others| &mut others.node))
    }

    /// The memory of a GPU in the mean over all.
    pub fn mean_memory(&self) -> Bytes {
        let all: Bytes = self.kinds().map(|(nodes, node)| node.gpu.memory.value * nodes as f64).sum();
        all / self.nodes as f64
    }

    /// The sum of all GPUs' published peaks in a precision that each of them has.
    ///
    /// # Panics
    /// If one has not.
    pub fn peak(&self, precision: Precision) -> FlopsPerSecond {
        let gpus = |nodes: usize| (nodes * self.node.gpus.value) as f64;
        self.kinds().map(|(nodes, node)| node.gpu.peak[&precision].value * gpus(nodes)).sum()
    }

    /// The first GPU of a kind.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn first_of(&self, kind: usize) -> usize {
        assert!(kind <= self.others.len(), "{} has no kind {kind}", self.name);
        self.kinds().take(kind).map(|(nodes, _)| nodes).sum::<usize>() * self.node.gpus.value
    }

    /// The same nodes with the kinds in another order: that of their numbers in `order`.
    ///
    /// # Panics
    /// If `order` is no order of the kinds.
    pub fn in_order(&self, order: &[usize]) -> Cluster {
        assert_eq!(order.len(), self.others.len() + 1, "an order names every kind");
        let kinds: Vec<(usize, &Node)> = self.kinds().collect();
        let mut ordered = order.iter().map(|kind| kinds[*kind]);
        let (_, first) = ordered.next().expect("there is a kind");
        let others = ordered.map(|(nodes, node)| Others { nodes, node: node.clone() }).collect();
        Cluster { node: first.clone(), others, ..self.clone() }
    }

    /// The kinds of the nodes that some global ranks are on, ascending.
    pub fn kinds_of(&self, ranks: &[usize]) -> Vec<usize> {
        if !self.is_mixed() {
            return vec![0];
        }
        let mut kinds: Vec<usize> = ranks.iter().map(|rank| self.kind_of(*rank)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_several_kinds_stand_in_runs() {
        let cluster = Cluster::from_name("dgx-h100:2+dgx-a100:3").unwrap();
        assert_eq!((cluster.nodes, cluster.gpus(), cluster.is_mixed()), (5, 40, true));
        let kinds: Vec<(usize, &str)> = cluster.kinds().map(|(nodes, node)| (nodes, &*node.name)).collect();
        assert_eq!(kinds, [(2, "dgx-h100"), (3, "dgx-a100")]);
        let of: Vec<usize> = [0, 15, 16, 39].into_iter().map(|rank| cluster.kind_of(rank)).collect();
        assert_eq!(of, [0, 0, 1, 1]);
        assert_eq!(cluster.kinds_of(&[3, 20, 5]), [0, 1]);
        assert_eq!((cluster.only(1).nodes, &*cluster.only(1).node.name), (3, "dgx-a100"));
        assert_eq!((cluster.first_of(1), cluster.mean_memory().as_gib().round()), (16, 79.0));
        let turned = cluster.in_order(&[1, 0]);
        assert_eq!((turned.nodes, turned.kind_of(23), turned.kind_of(24)), (5, 0, 1));
        assert_eq!((&*turned.node.name, &*turned.others[0].node.name), ("dgx-a100", "dgx-h100"));
        let plain = Cluster::from_name("dgx-h100:2").unwrap();
        assert_eq!((plain.is_mixed(), plain.kind_of(15), plain.kinds().count()), (false, 0, 1));
    }
}
