//! Bandwidth between the GPUs of a group in one node that no switch joins.

use super::topology::{LinkKind, Topology};
use crate::flow::{Flow, FlowId, Network};
use trainwright_spec::cluster::{Cluster, Interconnect, Node, Wiring};
use trainwright_spec::units::{BytesPerSecond, Picoseconds};

/// Bandwidths inside a node, out of one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wired<'a> {
    /// The links of the group's rings: the interconnect, or PCIe if its links form no ring.
    pub over: &'a Interconnect,
    /// On all rings through the group together.
    pub ring: BytesPerSecond,
    /// To the next GPU of the group when each sends to its next.
    pub pair: BytesPerSecond,
    /// To all others of the group when each sends to each.
    pub exchange: BytesPerSecond,
}

impl<'a> Wired<'a> {
    /// Of the `group` of a node's GPUs, counted from its first.
    ///
    /// Over switches all are the GPU's whole bandwidth, of which all-to-alls may reach another part than rings; on an even mesh of g GPUs a group of k has (k − 1)/(g − 1) of
    /// it and a pair 1/(g − 1). An interconnect whose rings were measured has as many links as there were rings through
    /// a group of that size, whichever its GPUs, and for single messages as many as for two. On all other wirings a
    /// search finds the disjoint rings, and messages take their routes at once, max-min fairly.
    pub fn new(group: &[usize], cluster: &Cluster, node: &'a Node) -> Self {
        let (interconnect, gpus, ranks) = (&node.interconnect, node.gpus.value, group.len());
        let full = interconnect.achieved();
        let parts = |ring: f64, pair: f64, exchange: f64| Self {
            over: interconnect,
            ring: full * ring,
            pair: full * pair,
            exchange: full * exchange,
        };
        let peers = gpus.saturating_sub(1).max(1) as f64;
        let measured = interconnect.rings.as_ref().map_or(&[][..], |rings| &rings.through);
        match (&interconnect.wiring, measured) {
            (Wiring::Switched, _) => {
                let reached = interconnect.exchange_efficiency.as_ref().unwrap_or(&interconnect.efficiency);
                Self { exchange: interconnect.bandwidth.value * reached.value, ..parts(1.0, 1.0, 1.0) }
            }
            _ if ranks < 2 => parts(1.0, 1.0, 1.0),
            (_, rings @ [pair, ..]) => {
                let links = *rings.last().expect("it has a first") as f64;
                let through = rings[(ranks - 2).min(rings.len() - 1)] as f64;
                parts(through / links, *pair as f64 / links, *pair as f64 / links)
            }
            (Wiring::Direct, []) => {
                let share = (ranks - 1) as f64 / peers;
                parts(share, 1.0 / peers, share)
            }
            (Wiring::Pairs(_) | Wiring::Bridges(_), []) => routed(group, cluster, node),
        }
    }
}

fn routed<'a>(group: &[usize], cluster: &Cluster, node: &'a Node) -> Wired<'a> {
    let one = Cluster { nodes: 1, node: node.clone(), others: Vec::new(), ..cluster.clone() };
    let topology = Topology::new(&one);
    let next = (0..group.len()).map(|place| (group[place], group[(place + 1) % group.len()]));
    let each = group.iter().flat_map(|from| group.iter().map(move |to| (*from, *to)));
    let pair = slowest(&topology, next);
    let exchange = slowest(&topology, each.filter(|(from, to)| from != to)) * (group.len() - 1) as f64;
    let (ring, kind) = match topology.rings(group) {
        Some(rings) => (rings.bandwidth * rings.cycles.len() as f64, rings.kind),
        // Neither links nor PCIe form a ring: its messages take the routes there are.
        None => (pair, LinkKind::Interconnect),
    };
    Wired { over: medium(node, kind), ring, pair, exchange }
}

fn medium(node: &Node, kind: LinkKind) -> &Interconnect {
    match (&node.host, kind) {
        (Some(host), LinkKind::Host) => host,
        _ => &node.interconnect,
    }
}

/// Bandwidth of the slowest of these messages if all are sent at once.
fn slowest(topology: &Topology, messages: impl Iterator<Item = (usize, usize)>) -> BytesPerSecond {
    let mut network = Network::new(topology.shared());
    let mut route = Vec::new();
    let mut start = |(from, to)| {
        route.clear();
        topology.route(from, to, &mut route);
        let path = route.iter().map(|link| (*link, 1.0)).collect();
        let flow = Flow { amount: 1.0, path, cap: None };
        network
            .start(Picoseconds::ZERO, flow)
            .expect("GPUs are joined by links with bandwidth: checked when read")
    };
    let flows: Vec<FlowId> = messages.map(&mut start).collect();
    let rates = flows.into_iter().map(|flow| network.rate(flow));
    BytesPerSecond::new(rates.fold(f64::INFINITY, f64::min))
}
