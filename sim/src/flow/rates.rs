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

/// Sums so many times the capacity have lost digits that matter once the sum is small again.
const ROUGH: f64 = 16.0;

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
struct Member {
    flow: u32,
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
    /// Σ w r over flows that something else holds back, and how many they are.
    elsewhere: f64,
    elsewhere_flows: u32,
    /// Σ w over flows that this link holds back, or nothing yet, and how many they are: the first of its members.
    here: f64,
    here_flows: u32,
    /// Whether `elsewhere` has been so great that its rounding may matter.
    is_rough: bool,
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
    levels: Vec<f64>,
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
    /// Flows that may be held back by the link that is looked at and are not, or the other way round.
    candidates: Vec<Candidate>,
    /// How many of them, the first, the link holds back.
    held_candidates: usize,
    active: usize,
    started: usize,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    flow: u32,
    weight: f64,
    /// The rate without the link, and what would hold the flow back.
    demand: f64,
    limit: Limit,
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
        let links: Vec<_> =
            capacities.map(|capacity| LinkState { capacity, ..LinkState::default() }).collect();
        Self {
            members: vec![Vec::new(); links.len()],
            ready: ReadyLinks::new(links.len()),
            is_changed: vec![false; links.len()],
            levels: vec![f64::INFINITY; links.len()],
            links,
            flows: Vec::new(),
            hops: Vec::new(),
            free_hops: Vec::new(),
            changed_links: Vec::new(),
            moved_flows: Vec::new(),
            candidates: Vec::new(),
            held_candidates: 0,
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
        self.levels[link as usize]
    }

    /// The flows that a link holds back.
    pub(super) fn held_back(&self, link: u32) -> impl Iterator<Item = u32> {
        let here = self.links[link as usize].here_flows as usize;
        self.members[link as usize][..here].iter().map(|member| member.flow)
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
            if self.levels[*link as usize] < rate {
                (rate, limit) = (self.levels[*link as usize], Limit::Link(*link));
            }
        }
        for (place, (link, weight)) in path.iter().enumerate() {
            let (link, weight, hop) = (*link, *weight, first_hop + place as u32);
            let members = &mut self.members[link as usize];
            self.hops[hop as usize] = Hop { link, member: members.len() as u32, weight };
            members.push(Member { flow, hop, weight });
            if limit.is_here(link) {
                self.join(hop);
            } else {
                self.links[link as usize].count(weight * rate);
                self.links[link as usize].elsewhere_flows += 1;
            }
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
            } else {
                self.links[link as usize].uncount(weight * rate);
            }
            let last = self.members[link as usize].len() as u32 - 1;
            self.swap_members(hop, last);
            self.members[link as usize].pop();
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
            let old = self.levels[link as usize];
            if mode == Mode::Anew && old.is_finite() {
                continue;
            }
            if mode == Mode::Repair {
                patience -= 1;
                if patience == 0 {
                    return false;
                }
            }
            if self.links[link as usize].is_rough {
                self.refresh(link);
            }
            let state = &self.links[link as usize];
            if state.agrees(old) {
                continue;
            }
            let expected = state.expected_level(old, f64::NEG_INFINITY);
            if expected > self.ready.lowest() {
                self.ready.push(expected, link);
                continue;
            }
            let level = self.fair_level(link);
            if level.min(old) > self.ready.lowest() {
                self.ready.push(level.min(old), link);
                continue;
            }
            self.set_level(link, level);
        }
        true
    }

    /// Forgets all levels and rates.
    fn forget_levels(&mut self) {
        self.ready.clear();
        for flow in &mut self.flows {
            (flow.rate, flow.limit) = unhindered(flow.cap);
        }
        for link in 0..self.links.len() as u32 {
            if self.members[link as usize].is_empty() {
                continue;
            }
            let state = &mut self.links[link as usize];
            self.levels[link as usize] = f64::INFINITY;
            *state = LinkState { capacity: state.capacity, ..LinkState::default() };
            for place in 0..self.members[link as usize].len() {
                let Member { flow, hop, weight } = self.members[link as usize][place];
                let FlowState { rate, limit, .. } = self.flows[flow as usize];
                self.moved_flows.push(flow);
                if limit == Limit::None {
                    self.join(hop);
                } else {
                    self.links[link as usize].count(weight * rate);
                    self.links[link as usize].elsewhere_flows += 1;
                }
            }
            let expected = self.links[link as usize].expected_level(f64::INFINITY, f64::NEG_INFINITY);
            self.ready.push(expected, link);
            self.mark_changed(link);
        }
    }

    /// Sums anew what flows that something else holds back take of a link.
    fn refresh(&mut self, link: u32) {
        let state = &mut self.links[link as usize];
        let others = &self.members[link as usize][state.here_flows as usize..];
        let parts = others.iter().map(|Member { flow, weight, .. }| weight * self.flows[*flow as usize].rate);
        state.elsewhere = parts.sum();
        state.is_rough = false;
    }

    /// The level of a link that does not agree, given those of all others; leaves in `candidates` the flows that may
    /// change sides, first those that the link will hold back.
    fn fair_level(&mut self, link: u32) -> f64 {
        let old = self.levels[link as usize];
        let LinkState { capacity, mut elsewhere, mut here, here_flows, .. } = self.links[link as usize];
        let members = &self.members[link as usize];
        let (here_members, other_members) = members.split_at(here_flows as usize);
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let mut level = if here_flows > 0 { (capacity - elsewhere) / here } else { f64::MIN };
        // Flows that the link holds back whatever its level.
        let mut kept = 0;
        if here_flows == 0 && elsewhere <= capacity * (1.0 + TOLERANCE) {
            level = f64::INFINITY;
        } else if level > old {
            candidates.extend(here_members.iter().map(|Member { flow, weight, .. }| {
                let (demand, limit) = self.demand(*flow, link);
                Candidate { flow: *flow, weight: *weight, demand, limit }
            }));
        } else {
            kept = here_flows;
            elsewhere = 0.0;
            for Member { flow, weight, .. } in other_members {
                let FlowState { rate, limit, .. } = self.flows[*flow as usize];
                if rate > level {
                    candidates.push(Candidate { flow: *flow, weight: *weight, demand: rate, limit });
                    here += weight;
                } else {
                    elsewhere += weight * rate;
                }
            }
            level = (capacity - elsewhere) / here;
        }
        // To let go of a flow that is slower than the level raises the level.
        let mut held = candidates.len();
        loop {
            let before = held;
            let mut place = 0;
            while place < held {
                let Candidate { weight, demand, .. } = candidates[place];
                if demand < level {
                    held -= 1;
                    candidates.swap(place, held);
                    elsewhere += weight * demand;
                    here -= weight;
                } else {
                    place += 1;
                }
            }
            if held == before {
                break;
            }
            level = if held + kept as usize == 0 { f64::INFINITY } else { (capacity - elsewhere) / here };
        }
        self.held_candidates = held;
        self.candidates = candidates;
        level
    }

    /// The rate that a flow would have without a link, and what would hold it back.
    fn demand(&self, flow: u32, without: u32) -> (f64, Limit) {
        let state = &self.flows[flow as usize];
        let mut demand = unhindered(state.cap);
        for Hop { link, .. } in &self.hops[state.path()] {
            let level = self.levels[*link as usize];
            if level < demand.0 && *link != without {
                demand = (level, Limit::Link(*link));
            }
        }
        demand
    }

    /// Sets the level that `fair_level` has found, and the rates that follow.
    fn set_level(&mut self, link: u32, level: f64) {
        let old = std::mem::replace(&mut self.levels[link as usize], level);
        self.mark_changed(link);
        let candidates = std::mem::take(&mut self.candidates);
        let (held, free) = candidates.split_at(self.held_candidates);
        if level > old {
            for Candidate { flow, demand, limit, .. } in free {
                self.set_rate(*flow, *demand, *limit, link);
            }
            for Candidate { flow, .. } in held {
                self.set_rate(*flow, level, Limit::Link(link), link);
            }
        } else {
            for place in 0..self.links[link as usize].here_flows as usize {
                let flow = self.members[link as usize][place].flow;
                self.set_rate(flow, level, Limit::Link(link), link);
            }
            for Candidate { flow, .. } in held {
                self.set_rate(*flow, level, Limit::Link(link), link);
            }
        }
        self.candidates = candidates;
    }

    /// Sets the rate of a flow and tells all its links; the one that brought it about needs no look.
    fn set_rate(&mut self, flow: u32, rate: f64, limit: Limit, cause: u32) {
        let state = &mut self.flows[flow as usize];
        let (old_rate, old_limit) = (state.rate, state.limit);
        (state.rate, state.limit) = (rate, limit);
        let path = state.path();
        if limit == old_limit {
            for hop in path {
                let Hop { link, weight, .. } = self.hops[hop];
                if link != cause {
                    self.links[link as usize].count(weight * (rate - old_rate));
                    self.touch(link, old_rate.min(rate));
                }
            }
            return;
        }
        for hop in path {
            let Hop { link, weight, .. } = self.hops[hop];
            match (old_limit.is_here(link), limit.is_here(link)) {
                (true, false) => {
                    self.leave(hop as u32);
                    self.links[link as usize].count(weight * rate);
                    self.links[link as usize].elsewhere_flows += 1;
                }
                (false, true) => {
                    self.links[link as usize].uncount(weight * old_rate);
                    self.join(hop as u32);
                }
                (false, false) => self.links[link as usize].count(weight * (rate - old_rate)),
                (true, true) => {}
            }
            if link != cause {
                self.touch(link, old_rate.min(rate));
            }
        }
        self.moved_flows.push(flow);
        for limit in [limit, old_limit] {
            if let Limit::Link(link) = limit {
                self.mark_changed(link);
            }
        }
    }

    /// Puts a flow among those that a link holds back.
    fn join(&mut self, hop: u32) {
        let Hop { link, weight, .. } = self.hops[hop as usize];
        let state = &mut self.links[link as usize];
        let place = state.here_flows;
        state.here += weight;
        state.here_flows += 1;
        self.swap_members(hop, place);
    }

    /// Takes a flow from among those that a link holds back.
    fn leave(&mut self, hop: u32) {
        let Hop { link, weight, .. } = self.hops[hop as usize];
        let state = &mut self.links[link as usize];
        state.here_flows -= 1;
        state.here = if state.here_flows == 0 { 0.0 } else { state.here - weight };
        let place = state.here_flows;
        self.swap_members(hop, place);
    }

    /// Exchanges the places of the member of a hop and of another member of that link.
    fn swap_members(&mut self, hop: u32, place: u32) {
        let Hop { link, member, .. } = self.hops[hop as usize];
        if member == place {
            return;
        }
        let members = &mut self.members[link as usize];
        members.swap(member as usize, place as usize);
        let other = members[member as usize].hop;
        self.hops[other as usize].member = member;
        self.hops[hop as usize].member = place;
    }

    /// Has a link looked at if it no longer agrees; no level below `floor` has changed.
    fn touch(&mut self, link: u32, floor: f64) {
        let (state, level) = (&self.links[link as usize], self.levels[link as usize]);
        if !self.ready.waits(link) && (state.is_rough || !state.agrees(level)) {
            self.ready.push(state.expected_level(level, floor), link);
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
    /// Adds what flows that something else holds back take more.
    fn count(&mut self, part: f64) {
        self.elsewhere += part;
        self.is_rough |= self.elsewhere > ROUGH * self.capacity;
    }

    /// Takes out a flow that something else holds back; an empty sum is exactly zero.
    fn uncount(&mut self, part: f64) {
        self.elsewhere_flows -= 1;
        self.elsewhere = if self.elsewhere_flows == 0 { 0.0 } else { self.elsewhere - part };
    }

    /// Whether a level is what the sums say.
    fn agrees(&self, level: f64) -> bool {
        if self.here_flows > 0 {
            (self.capacity - self.elsewhere - level * self.here).abs() <= self.capacity * TOLERANCE
        } else {
            level == f64::INFINITY && self.elsewhere <= self.capacity * (1.0 + TOLERANCE)
        }
    }

    /// From which level on a link that does not agree may change others, if no level below `floor` has changed.
    fn expected_level(&self, level: f64, floor: f64) -> f64 {
        if self.here_flows > 0 {
            level.min((self.capacity - self.elsewhere) / self.here)
        } else {
            level.min(floor)
        }
    }
}
