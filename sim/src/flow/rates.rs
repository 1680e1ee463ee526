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

use super::ready::ReadyLinks;

/// Sums of a link that differ by less than this part of its capacity are equal: rounding is a thousandth of it.
const TOLERANCE: f64 = 1e-12;

/// What holds a flow back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// Nothing yet: the rate is infinite until the levels are settled.
    None,
    /// Its own cap.
    Cap,
    /// This link.
    Link(u32),
}

/// A flow on a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) flow: u32,
    /// Where the link is in `hops`.
    hop: u32,
    weight: f64,
}

/// A link on the path of a flow.
#[derive(Debug, Clone, Copy)]
struct Hop {
    link: u32,
    /// Where the flow is among the members of the link.
    member: u32,
    weight: f64,
}

#[derive(Debug, Default)]
struct LinkState {
    capacity: f64,
    level: f64,
    /// Σ w r over flows that something else holds back, and how many they are.
    elsewhere: f64,
    elsewhere_flows: u32,
    /// Σ w over flows that this link holds back, or nothing yet, and how many they are.
    here: f64,
    here_flows: u32,
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
    links: Vec<LinkState>,
    members: Vec<Vec<Member>>,
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
    active: usize,
    started: usize,
}

/// How levels are put right.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// From the levels that were there, until all agree.
    Repair,
    /// From none, each level found once.
    Anew,
}

impl Rates {
    /// Links without flows.
    pub(super) fn new(capacities: impl Iterator<Item = f64>) -> Self {
        let links: Vec<_> = capacities
            .map(|capacity| LinkState { capacity, level: f64::INFINITY, ..LinkState::default() })
            .collect();
        Self {
            members: vec![Vec::new(); links.len()],
            ready: ReadyLinks::new(links.len()),
            is_changed: vec![false; links.len()],
            links,
            flows: Vec::new(),
            hops: Vec::new(),
            free_hops: Vec::new(),
            changed_links: Vec::new(),
            moved_flows: Vec::new(),
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
        self.links[link as usize].level
    }

    pub(super) fn members(&self, link: u32) -> &[Member] {
        &self.members[link as usize]
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
        let (mut rate, mut limit) = unhindered(cap);
        for (link, _) in path {
            if self.links[*link as usize].level < rate {
                (rate, limit) = (self.links[*link as usize].level, Limit::Link(*link));
            }
        }
        for (place, (link, weight)) in path.iter().enumerate() {
            let (link, weight, hop) = (*link, *weight, first_hop + place as u32);
            let members = &mut self.members[link as usize];
            self.hops[hop as usize] = Hop { link, member: members.len() as u32, weight };
            members.push(Member { flow, hop, weight });
            self.links[link as usize].count(weight, rate, limit.is_here(link));
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
            let Hop { link, member, weight } = self.hops[hop as usize];
            let members = &mut self.members[link as usize];
            members.swap_remove(member as usize);
            if let Some(Member { hop, .. }) = members.get(member as usize) {
                self.hops[*hop as usize].member = member;
            }
            self.links[link as usize].uncount(weight, rate, limit.is_here(link));
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

    /// Puts links right from the lowest level up; false if that takes longer than to begin anew.
    fn put_right(&mut self, mode: Mode) -> bool {
        let mut patience = 4 * self.links.len() + 64;
        while let Some(link) = self.ready.pop() {
            let state = &self.links[link as usize];
            let old = state.level;
            if state.agrees() || mode == Mode::Anew && old.is_finite() {
                continue;
            }
            let expected = state.expected_level(f64::NEG_INFINITY);
            if expected > self.ready.lowest() {
                self.ready.push(expected, link);
                continue;
            }
            if mode == Mode::Repair {
                patience -= 1;
                if patience == 0 {
                    return false;
                }
            }
            let level = self.fair_level(link);
            if level.min(old) > self.ready.lowest() {
                self.ready.push(level.min(old), link);
                continue;
            }
            if level != old {
                self.set_level(link, level);
            }
        }
        true
    }

    /// Forgets all levels and rates.
    fn forget_levels(&mut self) {
        self.ready.clear();
        for link in 0..self.links.len() as u32 {
            if self.members[link as usize].is_empty() {
                continue;
            }
            let state = &mut self.links[link as usize];
            *state = LinkState { capacity: state.capacity, level: f64::INFINITY, ..LinkState::default() };
            for Member { flow, weight, .. } in &self.members[link as usize] {
                let flow_state = &mut self.flows[*flow as usize];
                (flow_state.rate, flow_state.limit) = unhindered(flow_state.cap);
                self.moved_flows.push(*flow);
                state.count(*weight, flow_state.rate, flow_state.limit == Limit::None);
            }
            let expected = state.expected_level(f64::NEG_INFINITY);
            self.ready.push(expected, link);
            self.mark_changed(link);
        }
    }

    /// The level of a link, given those of all others.
    fn fair_level(&mut self, link: u32) -> f64 {
        let sums = self.sums(link, |_, _, is_here| is_here);
        let state = &mut self.links[link as usize];
        (state.elsewhere, state.elsewhere_flows) = (sums.elsewhere, sums.elsewhere_flows);
        (state.here, state.here_flows) = (sums.here, sums.here_flows);
        let (capacity, old) = (state.capacity, state.level);
        if state.agrees() {
            return old;
        }
        let mut level = sums.level(capacity);
        let mut held_back = u32::MAX;
        let rises = level > old;
        while level.is_finite() {
            let sums = if rises {
                self.sums(link, |rates, flow, is_here| is_here && rates.demand(flow, link).0 >= level)
            } else {
                self.sums(link, |rates, flow, is_here| is_here || rates.rate(flow) > level)
            };
            // Each round can only let go of flows; one that comes back is as fast as the level but for rounding.
            if sums.here_flows >= held_back {
                break;
            }
            held_back = sums.here_flows;
            level = sums.level(capacity);
        }
        level
    }

    /// The sums of a link if it held back those flows that `holds` says, of which it hears whether it does now.
    fn sums(&self, link: u32, holds: impl Fn(&Self, u32, bool) -> bool) -> LinkState {
        let mut sums = LinkState::default();
        for Member { flow, weight, .. } in &self.members[link as usize] {
            let state = &self.flows[*flow as usize];
            let is_here = state.limit.is_here(link);
            let held = holds(self, *flow, is_here);
            let rate = if is_here && !held { self.demand(*flow, link).0 } else { state.rate };
            sums.count(*weight, rate, held);
        }
        sums
    }

    /// The rate that a flow would have without a link, and what would hold it back.
    fn demand(&self, flow: u32, without: u32) -> (f64, Limit) {
        let state = &self.flows[flow as usize];
        let mut demand = unhindered(state.cap);
        for Hop { link, .. } in &self.hops[state.path()] {
            let level = self.links[*link as usize].level;
            if level < demand.0 && *link != without {
                demand = (level, Limit::Link(*link));
            }
        }
        demand
    }

    fn set_level(&mut self, link: u32, level: f64) {
        let rises = level > std::mem::replace(&mut self.links[link as usize].level, level);
        self.mark_changed(link);
        let members = std::mem::take(&mut self.members[link as usize]);
        let mut sums = LinkState::default();
        for Member { flow, weight, .. } in &members {
            let FlowState { rate, limit, .. } = self.flows[*flow as usize];
            let (new_rate, new_limit) = if limit.is_here(link) {
                let demand = if rises { self.demand(*flow, link) } else { (f64::INFINITY, Limit::None) };
                if demand.0 < level { demand } else { (level, Limit::Link(link)) }
            } else if rate > level {
                (level, Limit::Link(link))
            } else {
                (rate, limit)
            };
            sums.count(*weight, new_rate, new_limit.is_here(link));
            if (new_rate, new_limit) != (rate, limit) {
                self.set_rate(*flow, new_rate, new_limit, link);
            }
        }
        self.members[link as usize] = members;
        let state = &mut self.links[link as usize];
        (state.elsewhere, state.elsewhere_flows) = (sums.elsewhere, sums.elsewhere_flows);
        (state.here, state.here_flows) = (sums.here, sums.here_flows);
    }

    /// Sets the rate of a flow and tells all its links but the one that brought it about.
    fn set_rate(&mut self, flow: u32, rate: f64, limit: Limit, cause: u32) {
        let state = &mut self.flows[flow as usize];
        let (old_rate, old_limit) = (state.rate, state.limit);
        (state.rate, state.limit) = (rate, limit);
        for hop in state.path() {
            let Hop { link, weight, .. } = self.hops[hop];
            if link != cause {
                let state = &mut self.links[link as usize];
                state.uncount(weight, old_rate, old_limit.is_here(link));
                state.count(weight, rate, limit.is_here(link));
                self.touch(link, old_rate.min(rate));
            }
        }
        if limit != old_limit {
            self.moved_flows.push(flow);
            for limit in [limit, old_limit] {
                if let Limit::Link(link) = limit {
                    self.mark_changed(link);
                }
            }
        }
    }

    /// Has a link looked at if it no longer agrees; no level below `floor` has changed.
    fn touch(&mut self, link: u32, floor: f64) {
        let state = &self.links[link as usize];
        if !self.ready.waits(link) && !state.agrees() {
            let expected = state.expected_level(floor);
            self.ready.push(expected, link);
        }
    }

    fn mark_changed(&mut self, link: u32) {
        if !std::mem::replace(&mut self.is_changed[link as usize], true) {
            self.changed_links.push(link);
        }
    }

    /// Where there is room for so many hops in a row.
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

impl Limit {
    /// Whether a link counts a flow with this limit as its own.
    fn is_here(self, link: u32) -> bool {
        self == Self::Link(link) || self == Self::None
    }
}

impl FlowState {
    fn path(&self) -> std::ops::Range<usize> {
        self.first_hop as usize..(self.first_hop + self.hops) as usize
    }
}

impl LinkState {
    fn count(&mut self, weight: f64, rate: f64, is_here: bool) {
        if is_here {
            self.here += weight;
            self.here_flows += 1;
        } else {
            self.elsewhere += weight * rate;
            self.elsewhere_flows += 1;
        }
    }

    /// The inverse of `count`; an empty sum is exactly zero.
    fn uncount(&mut self, weight: f64, rate: f64, is_here: bool) {
        let (sum, part, flows) = if is_here {
            (&mut self.here, weight, &mut self.here_flows)
        } else {
            (&mut self.elsewhere, weight * rate, &mut self.elsewhere_flows)
        };
        *flows -= 1;
        *sum = if *flows == 0 { 0.0 } else { *sum - part };
    }

    /// The level at which the flows counted here take what those counted elsewhere leave of a capacity.
    fn level(&self, capacity: f64) -> f64 {
        if self.here_flows > 0 {
            (capacity - self.elsewhere) / self.here
        } else if self.elsewhere <= capacity * (1.0 + TOLERANCE) {
            f64::INFINITY
        } else {
            f64::MIN
        }
    }

    /// Whether the level is what the sums say.
    fn agrees(&self) -> bool {
        if self.here_flows > 0 {
            (self.capacity - self.elsewhere - self.level * self.here).abs() <= self.capacity * TOLERANCE
        } else {
            self.level == f64::INFINITY && self.elsewhere <= self.capacity * (1.0 + TOLERANCE)
        }
    }

    /// From which level on a link that does not agree may change others, if no level below `floor` has changed.
    fn expected_level(&self, floor: f64) -> f64 {
        if self.here_flows > 0 {
            self.level.min((self.capacity - self.elsewhere) / self.here)
        } else {
            self.level.min(floor)
        }
    }
}
