//! Tori: every GPU joined to its two neighbours in each dim, routed dim by dim the shorter way.

use super::graph::{Link, LinkKind, Routes, Vertex, add};
use crate::flow::LinkId;
use trainwright_spec::cluster::{Cluster, Torus};
use trainwright_spec::units::BytesPerSecond;

#[derive(Debug)]
pub(super) struct Grid {
    dims: Vec<usize>,
    wraps: Vec<bool>,
    /// The block of GPUs that a node holds.
    block: Vec<usize>,
    gpus_per_node: usize,
    bandwidth: BytesPerSecond,
    /// The link of each GPU in each dim, up then down, at GPU × 2 dims + 2 dim; `None` at the end of an open dim.
    links: Vec<Option<LinkId>>,
}

impl Grid {
    /// Each link has an equal part of the interconnect's bandwidth: 1/(2 dims), or 1/`links` where that is given.
    pub fn new(torus: &Torus, cluster: &Cluster, links: &mut Vec<Link>) -> Self {
        let interconnect = &cluster.node.interconnect;
        let gpus_per_node = cluster.node.gpus.value;
        let parts = interconnect.links.as_ref().map_or(2 * torus.dims.len(), |links| links.value);
        let mut grid = Self {
            dims: torus.dims.clone(),
            wraps: (0..torus.dims.len()).map(|dim| torus.wraps(dim)).collect(),
            block: torus.node_block(gpus_per_node).expect("`Cluster` refuses a node that is no block"),
            gpus_per_node,
            bandwidth: interconnect.achieved() / parts as f64,
            links: Vec::new(),
        };
        let dims = torus.dims.len();
        for (gpu, dim, up) in
            (0..cluster.gpus()).flat_map(|gpu| (0..2 * dims).map(move |way| (gpu, way / 2, way % 2 == 0)))
        {
            let link = grid.neighbour(gpu, dim, up).map(|to| Link {
                bandwidth: grid.bandwidth,
                latency: interconnect.latency.value,
                kind: LinkKind::Interconnect,
                from: Vertex::Gpu(gpu),
                to: Vertex::Gpu(to),
            });
            grid.links.push(link.map(|link| add(links, link)));
        }
        grid
    }

    /// Nodes run along the first dim first, and so do the GPUs of a node in its block.
    fn place(&self, gpu: usize) -> Vec<usize> {
        let (mut node, mut inner) = (gpu / self.gpus_per_node, gpu % self.gpus_per_node);
        let dims = self.dims.iter().zip(&self.block);
        dims.map(|(dim, block)| {
            let blocks = dim / block;
            let place = node % blocks * block + inner % block;
            (node, inner) = (node / blocks, inner / block);
            place
        })
        .collect()
    }

    fn gpu(&self, place: &[usize]) -> usize {
        let (mut node, mut inner) = (0, 0);
        for ((at, dim), block) in place.iter().zip(&self.dims).zip(&self.block).rev() {
            node = node * (dim / block) + at / block;
            inner = inner * block + at % block;
        }
        node * self.gpus_per_node + inner
    }

    fn neighbour(&self, gpu: usize, dim: usize, up: bool) -> Option<usize> {
        let mut place = self.place(gpu);
        let (at, size) = (place[dim], self.dims[dim]);
        let next = if up { at + 1 } else { at + size - 1 };
        let crosses = if up { next == size } else { at == 0 };
        if size == 1 || (crosses && !self.wraps[dim]) {
            return None;
        }
        place[dim] = next % size;
        Some(self.gpu(&place))
    }
}

impl Routes for Grid {
    /// The way halfway around a ring is equally long both ways: even places go up, odd ones down.
    fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) {
        let (mut place, end) = (self.place(from), self.place(to));
        for dim in 0..self.dims.len() {
            let size = self.dims[dim];
            let ahead = (end[dim] + size - place[dim]) % size;
            let up = match self.wraps[dim] {
                true if 2 * ahead == size => place[dim] % 2 == 0,
                true => 2 * ahead < size,
                false => end[dim] > place[dim],
            };
            while place[dim] != end[dim] {
                let gpu = self.gpu(&place);
                let link = self.links[(gpu * self.dims.len() + dim) * 2 + usize::from(!up)];
                path.push(link.expect("a route goes only where there are links"));
                place[dim] = (place[dim] + if up { 1 } else { size - 1 }) % size;
            }
        }
    }

    fn direct(&self, from: usize, to: usize) -> (usize, BytesPerSecond) {
        let ways = (0..self.dims.len()).flat_map(|dim| [(dim, true), (dim, false)]);
        (ways.filter(|(dim, up)| self.neighbour(from, *dim, *up) == Some(to)).count(), self.bandwidth)
    }
}
