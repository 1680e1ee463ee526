//! What messages between pipeline ranks take at least.

use crate::cost::CostModel;
use trainwright_lower::{least_message, messages_in_line};
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// Messages between neighbouring pipeline ranks, of the ranks that are first in every other axis.
#[derive(Debug, Clone)]
pub(super) struct MessagePath {
    /// Of each rank but the last: a message to the next one.
    to_next: Vec<Seconds>,
    /// Of the last rank to the first.
    around: Seconds,
    /// Whether kernels wait for them.
    in_line: bool,
}

impl MessagePath {
    /// Of a plan without stages.
    pub fn of(model: &CostModel, plan: &Plan) -> Self {
        let in_line = messages_in_line(plan).is_some();
        let bytes = least_message(plan);
        let between = |from: usize, to: usize| {
            let [from, to] = [from, to].map(|rank| plan.mesh.first_of(rank));
            let work = QueryWork::Message { bytes, to, blocking: in_line };
            model.costs.cost(&Query { rank: from, op: None, work }).time
        };
        let last = plan.mesh.pipeline - 1;
        let around = if last > 0 { between(last, 0) } else { Seconds::ZERO };
        Self { to_next: (0..last).map(|rank| between(rank, rank + 1)).collect(), around, in_line }
    }

    /// From the first rank to this one, and back if `both`; but for what this rank itself sends while its kernels wait.
    pub fn to(&self, rank: usize, both: bool) -> Seconds {
        let until = |rank: usize| -> Seconds { self.to_next[..rank].iter().copied().sum() };
        let back = if self.in_line { rank.saturating_sub(1) } else { rank };
        if both { until(rank) + until(back) } else { until(rank) }
    }

    /// What a rank with one stage sends in a microbatch, forward to the next rank and backward to the one before, if its kernels
    /// wait for that.
    pub fn sent_in_line(&self, rank: usize) -> Seconds {
        if !self.in_line {
            return Seconds::ZERO;
        }
        let next = self.to_next.get(rank);
        let before = rank.checked_sub(1).map(|before| &self.to_next[before]);
        next.into_iter().chain(before).copied().sum()
    }

    /// The fastest of all.
    pub fn least(&self) -> Seconds {
        self.to_next.iter().copied().fold(self.around, Seconds::min)
    }
}
