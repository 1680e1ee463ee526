//! Costs of ops that other ops do not slow.

use trainwright_sim::costs::{ClusterCosts, Conditions, Cost, Costs, Query};

/// The durations of a cluster, but nothing slows anything.
pub struct Undisturbed<'a>(pub ClusterCosts<'a>);

impl Costs for Undisturbed<'_> {
    fn cost(&self, query: &Query) -> Cost {
        Cost::of_time(self.0.cost(query).time)
    }

    fn device(&self, rank: usize) -> usize {
        self.0.device(rank)
    }

    fn machine(&self, _: usize) -> Option<usize> {
        None
    }

    fn conditions(&self) -> Conditions<'_> {
        Conditions::default()
    }
}
