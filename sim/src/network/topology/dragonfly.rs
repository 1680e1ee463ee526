//! Dragonflies: nodes at routers, routers in groups that are joined all to all, groups joined all to all.
//!
//! With adaptive routing, which spreads packets over all ways, the links of a router into its group act as one pipe,
//! and so do those of a group to other groups:
//!
//! ```text
//! NIC ─ router ─ local pipe ─ group ─ global pipe ─ all ─ global pipe ─ group ─ local pipe ─ router ─ NIC
//! ```
//!
//! With minimal routing there is one link between each two routers of a group and one between each two groups, which
//! ends at one router of each:
//!
//! ```text
//! NIC ─ router ─ local ─ gateway ─ global ─ gateway ─ local ─ router ─ NIC
//! ```

use super::graph::{Routes, Vertex};
use super::node::Nodes;
use super::site::Site;
use crate::flow::LinkId;
use std::sync::Arc;
use trainwright_spec::cluster::{Dragonfly, Routing};

#[derive(Debug)]
pub(super) struct Groups {
    nodes: Arc<Nodes>,
    nodes_per_router: usize,
    /// Routers in a group.
    routers: usize,
    groups: usize,
    routing: Routing,
    /// The first link inside groups. Adaptive: for each router one out, one in. Minimal: for each group and two of its
    /// routers, lower first, one each way.
    first_local: usize,
    /// The same between groups.
    first_global: usize,
}

impl Groups {
    /// Links between r routers carry n × injection / oversubscription for each router with its n nodes, split evenly
    /// over the r − 1 others where they are single; links between groups alike.
    pub fn new(dragonfly: &Dragonfly, mut site: Site) -> Self {
        let nodes = site.nodes.clone();
        let (per_router, routers) = (dragonfly.nodes_per_router.value, dragonfly.routers_per_group.value);
        let total = site.cluster.nodes;
        for node in 0..total {
            for port in 0..nodes.ports() {
                nodes.attach(
                    (node, port),
                    &Vertex::Switch { level: 0, index: node / per_router },
                    site.links,
                );
            }
        }
        let groups = total.div_ceil(per_router * routers);
        let local = dragonfly.local_oversubscription.value;
        let global = dragonfly.global_oversubscription.value;
        let router = |index: usize| Vertex::Switch { level: 0, index };
        let mut built = Self {
            nodes,
            nodes_per_router: per_router,
            routers,
            groups,
            routing: dragonfly.routing,
            first_local: site.links.len(),
            first_global: 0,
        };
        match dragonfly.routing {
            Routing::Adaptive => {
                let group = |index: usize| Vertex::Switch { level: 1, index };
                for index in 0..total.div_ceil(per_router) {
                    let bandwidth = site.injection(site.members(index, per_router)) / local;
                    site.join(router(index), group(index / routers), bandwidth);
                }
                built.first_global = site.links.len();
                for index in 0..groups {
                    let bandwidth = site.injection(site.members(index, per_router * routers)) / global;
                    site.join(group(index), Vertex::Switch { level: 2, index: 0 }, bandwidth);
                }
            }
            Routing::Minimal => {
                let share = |ends: usize| ends.max(2) as f64 - 1.0;
                let each = site.injection(per_router) / local / share(routers);
                for group in 0..groups {
                    for (low, high) in couples(routers) {
                        site.join(router(group * routers + low), router(group * routers + high), each);
                    }
                }
                built.first_global = site.links.len();
                let each = site.injection(per_router * routers) / global / share(groups);
                for (low, high) in couples(groups) {
                    site.join(router(built.gateway(low, high)), router(built.gateway(high, low)), each);
                }
            }
        }
        built
    }

    /// The router of group `from` that the link to group `to` starts at: links are dealt out in turn.
    fn gateway(&self, from: usize, to: usize) -> usize {
        let other = if to > from { to - 1 } else { to };
        from * self.routers + other % self.routers
    }

    /// The link from one to another of `ends` that are joined all to all, counted from the first of them.
    fn single(first: usize, ends: usize, from: usize, to: usize) -> LinkId {
        let (low, high) = (from.min(to), from.max(to));
        let couple = low * (2 * ends - low - 1) / 2 + high - low - 1;
        LinkId((first + 2 * couple + usize::from(from > to)) as u32)
    }

    fn local(&self, from: usize, to: usize) -> Option<LinkId> {
        let first = self.first_local + from / self.routers * self.routers * (self.routers - 1);
        (from != to).then(|| Self::single(first, self.routers, from % self.routers, to % self.routers))
    }
}

/// Each two of `ends`, in the order in which `Groups::single` counts them.
fn couples(ends: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..ends).flat_map(move |low| (low + 1..ends).map(move |high| (low, high)))
}

impl Routes for Groups {
    fn route(&self, from: usize, to: usize, path: &mut Vec<LinkId>) {
        let (start, end) = (self.nodes.port(from), self.nodes.port(to));
        let (a, b) = (start.0 / self.nodes_per_router, end.0 / self.nodes_per_router);
        let (near, far) = (a / self.routers, b / self.routers);
        path.push(self.nodes.nic_out(start));
        match self.routing {
            _ if a == b => {}
            Routing::Adaptive => {
                let pipe = |first: usize, index: usize, way: usize| LinkId((first + 2 * index + way) as u32);
                path.push(pipe(self.first_local, a, 0));
                if near != far {
                    path.extend([pipe(self.first_global, near, 0), pipe(self.first_global, far, 1)]);
                }
                path.push(pipe(self.first_local, b, 1));
            }
            Routing::Minimal if near == far => path.extend(self.local(a, b)),
            Routing::Minimal => {
                path.extend(self.local(a, self.gateway(near, far)));
                path.push(Self::single(self.first_global, self.groups, near, far));
                path.extend(self.local(self.gateway(far, near), b));
            }
        }
        path.push(self.nodes.nic_in(end));
    }
}
