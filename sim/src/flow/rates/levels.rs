//! Puts the levels of links right, from the lowest up, and with them the rates of flows.
//!
//! Nothing here knows when flows come or go.

use super::super::link_state::{LinkState, Load, Member};
use super::{Hop, Limit, Rates, finite, unhindered};

/// A flow that a link may hold back whose level falls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    flow: u32,
    weight: f64,
    rate: f64,
}

/// How levels are put right.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// From the levels that were there, until all agree.
    Repair,
    /// From none, each level found once.
    Anew,
}

const NO_LINK: u32 = u32::MAX;

impl Rates {
    /// Puts links right from the lowest level up; false if that takes longer than to begin anew.
    pub(super) fn put_right(&mut self, mode: Mode) -> bool {
        let mut patience = 4 * self.links.len() + 64;
        while let Some(link) = self.ready.pop() {
            let old = self.level(link);
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
            let (state, load) = (&self.links[link as usize], &self.loads[link as usize]);
            if !load.needs_look() {
                continue;
            }
            let elsewhere = state.elsewhere(load);
            let level = state.level_over(elsewhere);
            let is_higher = if state.here_flows > 0 { level > old } else { load.fits() };
            if (is_higher || state.here_flows > 0) && level.min(old) > self.ready.lowest() {
                self.ready.push(level.min(old), link);
            } else if is_higher {
                self.raise_level(link, level, elsewhere);
            } else {
                let (level, elsewhere) = self.find_lower_level(link, level);
                if level.min(old) > self.ready.lowest() {
                    self.ready.push(level.min(old), link);
                } else {
                    self.lower_level(link, level, elsewhere);
                }
            }
        }
        true
    }

    /// Forgets all levels and rates.
    pub(super) fn forget_levels(&mut self) {
        self.ready.clear();
        for flow in &mut self.flows {
            (flow.rate, flow.limit) = unhindered(flow.cap);
        }
        for link in 0..self.links.len() as u32 {
            let state = &mut self.links[link as usize];
            if state.members.is_empty() {
                continue;
            }
            (state.here, state.here_flows, state.is_rough) = (0.0, 0, true);
            self.loads[link as usize] = Load::none(state.capacity);
            for place in 0..state.members.len() {
                let Member { flow, hop, .. } = self.links[link as usize].members[place];
                self.moved_flows.push(flow);
                if self.limit(flow) == Limit::None {
                    self.join(hop);
                }
            }
            self.refresh(link);
            let (state, load) = (&self.links[link as usize], &self.loads[link as usize]);
            self.ready.push(state.expected_level(load, f64::NEG_INFINITY), link);
            self.mark_changed(link);
        }
    }

    /// Sums anew what flows take of a link.
    fn refresh(&mut self, link: u32) {
        let state = &mut self.links[link as usize];
        let others = state.other_members().iter();
        let elsewhere = others.map(|other| other.weight * self.flows[other.flow as usize].rate).sum();
        state.is_rough = false;
        let load = &mut self.loads[link as usize];
        state.set_level(load, load.level, elsewhere);
    }

    /// Raises the level of a link whose flows leave room, given the levels of all others, and the rates that follow.
    fn raise_level(&mut self, link: u32, mut level: f64, mut elsewhere: f64) {
        self.mark_changed(link);
        let mut slower = std::mem::take(&mut self.slower_flows);
        loop {
            // No bound to its flows while they follow.
            self.loads[link as usize].level = f64::INFINITY;
            for place in 0..self.links[link as usize].here_flows as usize {
                let flow = self.links[link as usize].members[place].flow;
                if self.follow_level(flow, level, link) < level {
                    slower.push(flow);
                }
            }
            let (state, load) = (&self.links[link as usize], &mut self.loads[link as usize]);
            state.set_level(load, level, elsewhere);
            if slower.is_empty() {
                break;
            }
            // To let go of them raises the level further.
            for flow in slower.drain(..) {
                let (rate, limit) = self.demand(flow, link);
                self.set_rate(flow, rate, limit, link);
            }
            let (state, load) = (&self.links[link as usize], &self.loads[link as usize]);
            elsewhere = state.elsewhere(load);
            level = state.level_over(elsewhere);
        }
        self.slower_flows = slower;
    }

    /// The level of a link that carries too much, given those of all others; leaves in `candidates` the flows that it
    /// will hold back too. Returns also what the flows take that it will not. `lowest` is the level if there were none.
    fn find_lower_level(&mut self, link: u32, lowest: f64) -> (f64, f64) {
        let state = &self.links[link as usize];
        let LinkState { capacity, mut here, here_flows, .. } = *state;
        let lowest = if here_flows > 0 { lowest } else { f64::MIN };
        let mut elsewhere = 0.0;
        self.candidates.clear();
        for Member { flow, weight, .. } in state.other_members() {
            let rate = self.flows[*flow as usize].rate;
            if rate > lowest {
                self.candidates.push(Candidate { flow: *flow, weight: *weight, rate });
                here += weight;
            } else {
                elsewhere += weight * rate;
            }
        }
        loop {
            let is_idle = here_flows == 0 && self.candidates.is_empty();
            let level = if is_idle { f64::INFINITY } else { (capacity - elsewhere) / here };
            let before = self.candidates.len();
            // To let go of a flow that is slower than the level raises the level.
            self.candidates.retain(|Candidate { weight, rate, .. }| {
                let is_slower = rate < &level;
                if is_slower {
                    elsewhere += weight * rate;
                    here -= weight;
                }
                !is_slower
            });
            if self.candidates.len() == before {
                return (level, elsewhere);
            }
        }
    }

    /// The rate that a flow would have without a link, and what would hold it back.
    fn demand(&self, flow: u32, without: u32) -> (f64, Limit) {
        let state = &self.flows[flow as usize];
        let (mut demand, mut link) = (state.cap, NO_LINK);
        for hop in &self.hops[state.path()] {
            let level = self.loads[hop.link as usize].level;
            let is_lower = (level < demand) & (hop.link != without);
            demand = if is_lower { level } else { demand };
            link = if is_lower { hop.link } else { link };
        }
        if link == NO_LINK { unhindered(demand) } else { (demand, Limit::Link(link)) }
    }

    /// Sets the level that `find_lower_level` has found, and the rates that follow.
    fn lower_level(&mut self, link: u32, level: f64, elsewhere: f64) {
        let old = std::mem::replace(&mut self.loads[link as usize].level, level);
        self.mark_changed(link);
        for place in 0..self.links[link as usize].here_flows as usize {
            let flow = self.links[link as usize].members[place].flow;
            if old == f64::INFINITY {
                self.set_rate(flow, level, Limit::Link(link), link);
            } else {
                self.follow_level(flow, level, link);
            }
        }
        let candidates = std::mem::take(&mut self.candidates);
        for Candidate { flow, .. } in &candidates {
            self.set_rate(*flow, level, Limit::Link(link), link);
        }
        self.candidates = candidates;
        let (state, load) = (&self.links[link as usize], &mut self.loads[link as usize]);
        state.set_level(load, level, elsewhere);
    }

    /// Sets the rate of a flow that a link holds back to the new level of that link, and passes that on to its other links. Returns
    /// what else bounds the rate.
    fn follow_level(&mut self, flow: u32, level: f64, held_by: u32) -> f64 {
        let Self { flows, hops, loads, links, ready, .. } = self;
        let state = &mut flows[flow as usize];
        let old = std::mem::replace(&mut state.rate, level);
        let (more, floor) = (level - old, level.min(old));
        let (mut bound, loads) = (state.cap, &mut loads[..]);
        for Hop { link, weight, .. } in &hops[state.path()] {
            let load = &mut loads[*link as usize];
            load.sum += weight * more;
            bound = if load.level < bound { load.level } else { bound };
            if load.needs_look() && *link != held_by {
                links[*link as usize].look_later(load, ready, *link, floor);
            }
        }
        bound
    }

    /// Sets the rate and the limit of a flow and updates all its links; the link that caused the change needs no check.
    fn set_rate(&mut self, flow: u32, rate: f64, limit: Limit, cause: u32) {
        let state = &mut self.flows[flow as usize];
        let (old_rate, old_limit) = (state.rate, state.limit);
        (state.rate, state.limit) = (rate, limit);
        let path = state.path();
        for hop in path {
            let Hop { link, weight, .. } = self.hops[hop];
            match (old_limit.is_here(link), limit.is_here(link)) {
                (true, false) => self.leave(hop as u32),
                (false, true) => self.join(hop as u32),
                _ => {}
            }
            self.loads[link as usize].sum += weight * (rate - finite(old_rate));
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
}
