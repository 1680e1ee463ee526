//! The part of a torus that a job of some nodes gets.

use super::{Cluster, Fabric, Shape, Torus};
use crate::catalog;

impl Torus {
    /// A torus of fewer nodes, with the nodes' blocks as they are: the prime factors of the number of nodes, largest first,
    /// each to the shortest dim. All dims are taken to be rings.
    pub fn of_nodes(&self, nodes: usize, gpus_per_node: usize) -> Self {
        let mut dims = self.node_block(gpus_per_node).unwrap_or_default();
        dims.resize(self.dims.len(), 1);
        for factor in prime_factors(nodes) {
            if let Some(shortest) = dims.iter_mut().min_by_key(|dim| **dim) {
                *shortest *= factor;
            }
        }
        Self { dims, ..self.clone() }
    }
}

impl Fabric {
    /// The fabric of some nodes of the catalog without NICs: a part of the torus that joins them in a cluster of the catalog;
    /// `None` if there is none.
    pub(super) fn of_torus_nodes(node: &str, nodes: usize) -> Option<Self> {
        let clusters = catalog::names("clusters").into_iter();
        let mut known =
            clusters.filter_map(|name| Cluster::from_toml(catalog::text("cluster", name).ok()?, name).ok());
        known.find_map(|cluster| match &cluster.fabric.shape {
            Shape::Torus(torus) if cluster.node.name == node => {
                let torus = torus.of_nodes(nodes, cluster.node.gpus.value);
                Some(Fabric { shape: Shape::Torus(torus), ..cluster.fabric.clone() })
            }
            _ => None,
        })
    }
}

/// The prime factors of a number from 1 on, descending.
fn prime_factors(mut number: usize) -> Vec<usize> {
    let mut factors = Vec::new();
    let mut divisor = 2;
    while divisor * divisor <= number {
        while number.is_multiple_of(divisor) {
            factors.push(divisor);
            number /= divisor;
        }
        divisor += 1;
    }
    factors.extend((number > 1).then_some(number));
    factors.reverse();
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_torus_is_as_square_as_its_nodes_allow() {
        let check = |pod: &str, nodes: usize, dims: &[usize]| {
            let cluster = Cluster::from_name(&format!("{pod}:{nodes}")).unwrap();
            let Shape::Torus(torus) = &cluster.fabric.shape else { panic!("{pod} is a torus") };
            assert_eq!(torus.dims, dims, "{pod}:{nodes}");
        };
        // Blocks of 2 by 2: 4 = 2 · 2 of them are 4 by 4.
        check("tpu-v5e-host", 4, &[4, 4]);
        check("tpu-v5e-host", 64, &[16, 16]);
        check("tpu-v5e-pod", 64, &[16, 16]);
        check("tpu-v5e-pod", 8, &[8, 4]);
        // Blocks of 2 by 2 by 1: 16 = 2 · 2 · 2 · 2 of them are 4 by 4 by 4.
        check("tpu-v5p-host", 16, &[4, 4, 4]);
        check("tpu-v5p-host", 3, &[2, 2, 3]);
        // The pod as the catalog has it: 2,240 = 7 · 5 · 2^6 nodes.
        check("tpu-v5p-pod", 2240, &[16, 20, 28]);
    }
}
