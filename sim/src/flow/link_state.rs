//! The state of one link: the rates of the flows that cross it, and which of them it holds back.
//!
//! Nothing here knows where else a flow goes.

use super::ready::ReadyLinks;

/// Sums of a link that differ by less than this part of its capacity are equal: rounding is a thousandth of it.
const TOLERANCE: f64 = 1e-12;

/// Sums of this many times the capacity have lost digits that matter once the sum is small again.
const ROUGH: f64 = 16.0;

/// All that a change of a rate must look at: two of them in one line of the processor's cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Load {
    /// Σ w r over the flows that have a rate.
    pub sum: f64,
    /// The level stands as long as the sum is in this range.
    least: f64,
    most: f64,
    /// The rate of the flows that the link holds back; infinite if it holds back none.
    pub level: f64,
}

/// A flow on a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub flow: u32,
    /// The hop of the flow that is this link.
    pub hop: u32,
    pub weight: f64,
}

/// The flows on a link.
#[derive(Debug)]
pub(super) struct LinkState {
    pub capacity: f64,
    /// Those that the link holds back, or nothing yet, come first.
    pub members: Vec<Member>,
    pub here_flows: u32,
    /// Whether the sum has been so great that its rounding may matter.
    pub is_rough: bool,
    /// Σ w over flows that the link holds back, or nothing yet.
    pub here: f64,
}

impl Load {
    /// The state of a link that no flow crosses.
    pub fn none(capacity: f64) -> Self {
        let most = capacity * (1.0 + TOLERANCE);
        Self { sum: 0.0, least: f64::NEG_INFINITY, most, level: f64::INFINITY }
    }

    /// Whether the level may have to change. No branch inside: the processor could not foresee it.
    #[inline]
    pub fn needs_look(&self) -> bool {
        (self.sum < self.least) | (self.sum > self.most)
    }

    /// Whether the flows' sum is not more than the link can carry.
    pub fn fits(&self) -> bool {
        self.sum <= self.most
    }

    /// Whether the sum is so great that its rounding may matter.
    pub fn is_rough(&self) -> bool {
        self.sum > ROUGH * self.most
    }
}

impl LinkState {
    /// A link that no flow crosses.
    pub fn empty(capacity: f64) -> Self {
        Self { capacity, members: Vec::new(), here_flows: 0, is_rough: false, here: 0.0 }
    }

    /// Flows that the link holds back, or nothing yet.
    pub fn here_members(&self) -> &[Member] {
        &self.members[..self.here_flows as usize]
    }

    /// Flows that something else holds back.
    pub fn other_members(&self) -> &[Member] {
        &self.members[self.here_flows as usize..]
    }

    /// Σ w r over flows that something else holds back; exactly zero if there are none.
    pub fn elsewhere(&self, load: &Load) -> f64 {
        if self.other_members().is_empty() {
            0.0
        } else if self.here_flows == 0 || load.level == f64::INFINITY {
            load.sum
        } else {
            load.sum - load.level * self.here
        }
    }

    /// Sets the level, and the sum from what flows take that something else holds back.
    pub fn set_level(&self, load: &mut Load, level: f64, elsewhere: f64) {
        let has_level = self.here_flows > 0 && level != f64::INFINITY;
        load.level = level;
        load.sum = if has_level { elsewhere + level * self.here } else { elsewhere };
        self.set_range(load);
    }

    /// Sets for which sums the level stands. The level of a link that holds back none must be infinite, and flows
    /// that nothing holds back need a level.
    pub fn set_range(&self, load: &mut Load) {
        load.least = match (self.here_flows > 0, load.level != f64::INFINITY) {
            (true, true) => self.capacity * (1.0 - TOLERANCE),
            (false, false) => f64::NEG_INFINITY,
            _ => f64::INFINITY,
        };
    }

    /// The level that fills the link if flows that something else holds back take so much.
    pub fn level_over(&self, elsewhere: f64) -> f64 {
        if self.here_flows > 0 { (self.capacity - elsewhere) / self.here } else { f64::INFINITY }
    }

    /// Has this link looked at, which does not agree, if no level below `floor` has changed.
    #[inline]
    pub fn look_later(&mut self, load: &Load, ready: &mut ReadyLinks, link: u32, floor: f64) {
        if load.is_rough() {
            self.is_rough = true;
        }
        if !ready.waits(link) {
            ready.push(self.expected_level(load, floor), link);
        }
    }

    /// From which level on a link that needs a look may change others, if no level below `floor` has changed.
    pub fn expected_level(&self, load: &Load, floor: f64) -> f64 {
        if self.here_flows > 0 {
            load.level.min(self.level_over(self.elsewhere(load)))
        } else {
            load.level.min(floor)
        }
    }
}
