//! Which rate has each flow? The max-min fair one.
//!
//! A saturated link has a *level*: the rate of the flows that it holds back. A link that is not saturated holds
//! nobody back; its level is infinite. With the levels λ of all links, the cap c and the weights w of flow i,
//!
//! ```text
//! rᵢ = min(cᵢ, λ of each link of i's path)
//! λ of link l solves  Σ w · min(λ, dᵢ) = C,   dᵢ = min(cᵢ, λ of the other links of i's path);  ∞ if Σ w dᵢ ≤ C
//! ```
//!
//! C capacity of l, the sums over the flows that cross l. When all links agree, every flow is at its cap or crosses
//! a saturated link on which no flow is faster, and that is what max-min fair means (Bertsekas & Gallager 1992,
//! Data Networks, section 6.5.2), so the rates are the only fair ones.
//!
//! A level depends on lower levels only. After a change, the links that no longer agree are put right from the
//! lowest level up, and only those that this disturbs come after them. Should that wander, all levels are found
//! anew by water-filling, which looks at the lowest level first and fixes it for good.
//!
//! Nothing here knows amounts or time.

mod levels;

use self::levels::{Candidate, Mode};
use super::link_state::{LinkState, Load, Member};
use super::ready::ReadyLinks;

/// The limit that holds a flow back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// Nothing yet: the rate is infinite until the levels are settled.
    None,
    /// The flow's cap.
    Cap,
    /// This link.
    Link(u32),
}

/// A link on the path of a flow.
#[derive(Debug, Clone, Copy)]
struct Hop {
    link: u32,
    /// Where the flow is among the members of the link.
    member: u32,
    weight: f64,
}

#[derive(Debug, Clone, Copy)]
struct FlowState {
    rate: f64,
    limit: Limit,
    cap: f64,
    first_hop: u32,
    hops: u32,
}

/// Flows in slots, which their owner numbers and uses again.
#[derive(Debug)]
pub(super) struct Rates {
    /// By link, as `links`.
    loads: Vec<Load>,
    links: Vec<LinkState>,
    flows: Vec<FlowState>,
    hops: Vec<Hop>,
    /// Room in `hops` that ended flows leave, by its length.
    free_hops: Vec<Vec<u32>>,
    ready: ReadyLinks,
    /// Links whose level or flows changed, each once.
    changed_links: Vec<u32>,
    is_changed: Vec<bool>,
    /// Flows that something else holds back than before; some more than once.
    moved_flows: Vec<u32>,
    /// Flows that the link that is looked at may hold back too.
    candidates: Vec<Candidate>,
    /// Flows that the link that is looked at no longer holds back.
    slower_flows: Vec<u32>,
    active: usize,
    started: usize,
}

impl Rates {
    /// Links without flows.
    pub(super) fn new(capacities: impl Iterator<Item = f64>) -> Self {
        let links: Vec<_> = capacities.map(LinkState::empty).collect();
        Self {
            loads: links.iter().map(|link| Load::none(link.capacity)).collect(),
            ready: ReadyLinks::new(links.len()),
            is_changed: vec![false; links.len()],
            links,
            flows: Vec::new(),
            hops: Vec::new(),
            free_hops: Vec::new(),
            changed_links: Vec::new(),
            moved_flows: Vec::new(),
            candidates: Vec::new(),
            slower_flows: Vec::new(),
            active: 0,
            started: 0,
        }
    }

    pub(super) fn rate(&self, flow: u32) -> f64 {
        self.flows[flow as usize].rate
    }

    pub(super) fn cap(&self, flow: u32) -> f64 {
        self.flows[flow as usize].cap
    }

    pub(super) fn limit(&self, flow: u32) -> Limit {
        self.flows[flow as usize].limit
    }

    pub(super) fn level(&self, link: u32) -> f64 {
        self.loads[link as usize].level
    }

    /// The flows that a link holds back.
    pub(super) fn held_back(&self, link: u32) -> impl Iterator<Item = u32> {
        self.links[link as usize].here_members().iter().map(|member| member.flow)
    }

    /// Links whose level or flows changed since `forget_changes`, each once.
    pub(super) fn changed_links(&self) -> &[u32] {
        &self.changed_links
    }

    /// Flows whose limit changed since `forget_changes`; some more than once.
    pub(super) fn moved_flows(&self) -> &[u32] {
        &self.moved_flows
    }

    pub(super) fn forget_changes(&mut self) {
        for link in self.changed_links.drain(..) {
            self.is_changed[link as usize] = false;
        }
        self.moved_flows.clear();
    }

    /// Adds a flow in a free slot, the next new one or one that was left. No link twice on the path.
    pub(super) fn add(&mut self, flow: u32, path: &[(u32, f64)], cap: f64) {
        let first_hop = self.room(path.len());
        // A cap that a link makes idle would only add great numbers to the sums of links.
        let alone = |(link, weight): &(u32, f64)| self.links[*link as usize].capacity / weight;
        let cap = if path.iter().all(|hop| cap < alone(hop)) { cap } else { f64::INFINITY };
        let (mut rate, mut limit) = unhindered(cap);
        for (link, _) in path {
            let level = self.level(*link);
            if level < rate {
                (rate, limit) = (level, Limit::Link(*link));
            }
        }
        for (place, (link, weight)) in path.iter().enumerate() {
            let (link, weight, hop) = (*link, *weight, first_hop + place as u32);
            let state = &mut self.links[link as usize];
            self.hops[hop as usize] = Hop { link, member: state.members.len() as u32, weight };
            state.members.push(Member { flow, hop, weight });
            if limit.is_here(link) {
                self.join(hop);
            }
            self.loads[link as usize].sum += weight * finite(rate);
            self.touch(link, rate);
        }
        let state = FlowState { rate, limit, cap, first_hop, hops: path.len() as u32 };
        if flow as usize == self.flows.len() {
            self.flows.push(state);
        } else {
            self.flows[flow as usize] = state;
        }
        self.moved_flows.push(flow);
        if let Limit::Link(link) = limit {
            self.mark_changed(link);
        }
        self.active += 1;
        self.started += 1;
    }

    /// Removes a flow; its slot is free.
    pub(super) fn remove(&mut self, flow: u32) {
        let FlowState { rate, limit, first_hop, hops, .. } = self.flows[flow as usize];
        for hop in first_hop..first_hop + hops {
            let Hop { link, weight, .. } = self.hops[hop as usize];
            if limit.is_here(link) {
                self.leave(hop);
            }
            let last = self.links[link as usize].members.len() as u32 - 1;
            self.swap_members(hop, last);
            let state = &mut self.links[link as usize];
            state.members.pop();
            let is_idle = state.members.is_empty();
            let load = &mut self.loads[link as usize];
            load.sum = if is_idle { 0.0 } else { load.sum - weight * rate };
            self.touch(link, rate);
        }
        if let Limit::Link(link) = limit {
            self.mark_changed(link);
        }
        self.free_hops[hops as usize].push(first_hop);
        self.active -= 1;
    }

    /// Makes all links agree.
    pub(super) fn settle(&mut self) {
        let many = 2 * std::mem::take(&mut self.started) > self.active;
        if many || !self.put_right(Mode::Repair) {
            self.forget_levels();
            self.put_right(Mode::Anew);
        }
    }

    /// Puts a flow among those that a link holds back.
    fn join(&mut self, hop: u32) {
        let Hop { link, weight, .. } = self.hops[hop as usize];
        let state = &mut self.links[link as usize];
        let place = state.here_flows;
        state.here += weight;
        state.here_flows += 1;
        state.set_range(&mut self.loads[link as usize]);
        self.swap_members(hop, place);
    }

    /// Takes a flow from among those that a link holds back.
    fn leave(&mut self, hop: u32) {
        let Hop { link, weight, .. } = self.hops[hop as usize];
        let state = &mut self.links[link as usize];
        state.here_flows -= 1;
        state.here = if state.here_flows == 0 { 0.0 } else { state.here - weight };
        let place = state.here_flows;
        state.set_range(&mut self.loads[link as usize]);
        self.swap_members(hop, place);
    }

    /// Exchanges the places of the member of a hop and of another member of that link.
    fn swap_members(&mut self, hop: u32, place: u32) {
        let Hop { link, member, .. } = self.hops[hop as usize];
        if member == place {
            return;
        }
        let members = &mut self.links[link as usize].members;
        members.swap(member as usize, place as usize);
        let other = members[member as usize].hop;
        self.hops[other as usize].member = member;
        self.hops[hop as usize].member = place;
    }

    /// Has a link looked at if it no longer agrees; no level below `floor` has changed.
    #[inline]
    fn touch(&mut self, link: u32, floor: f64) {
        let load = &self.loads[link as usize];
        if load.needs_look() {
            self.links[link as usize].look_later(load, &mut self.ready, link, floor);
        }
    }

    fn mark_changed(&mut self, link: u32) {
        if !std::mem::replace(&mut self.is_changed[link as usize], true) {
            self.changed_links.push(link);
        }
    }

    /// The first of `length` free hops in a row.
    fn room(&mut self, hops: usize) -> u32 {
        if hops >= self.free_hops.len() {
            self.free_hops.resize(hops + 1, Vec::new());
        }
        self.free_hops[hops].pop().unwrap_or_else(|| {
            let first = self.hops.len();
            self.hops.resize(first + hops, Hop { link: 0, member: 0, weight: 0.0 });
            first as u32
        })
    }
}

/// The rate of a flow that no link holds back.
fn unhindered(cap: f64) -> (f64, Limit) {
    (cap, if cap.is_finite() { Limit::Cap } else { Limit::None })
}

/// The load of a flow at a rate; 0 as long as it has no rate.
fn finite(rate: f64) -> f64 {
    if rate.is_finite() { rate } else { 0.0 }
}

impl Limit {
    /// Whether a link is what limits a flow with this limit.
    fn is_here(self, link: u32) -> bool {
        self == Self::Link(link) || self == Self::None
    }
}

impl FlowState {
    fn path(&self) -> std::ops::Range<usize> {
        self.first_hop as usize..(self.first_hop + self.hops) as usize
    }
}
