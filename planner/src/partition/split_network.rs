//! Splits as paths: node (stage, cut), an arc for each interval of layers that a stage can take.
//!
//! Shortest paths in it bound the objective from below (the least slowest time and the least sum, each on its own), and
//! from above (each such path is a split). An arc through which no split can beat the best one known is dropped.

use super::problem::Problem;
use std::ops::Range;

/// For each stage in order, its arcs, by `from`, then `to`.
#[derive(Clone)]
pub(super) struct SplitNetwork {
    pub stages: Vec<Vec<Arc>>,
    /// One more than the last cut.
    pub cuts: usize,
}

/// A stage takes the layers `from..to` and then needs `time` seconds per microbatch.
#[derive(Clone, Copy)]
pub(super) struct Arc {
    pub from: usize,
    pub to: usize,
    pub time: f64,
}

/// A split with its costs in seconds.
#[derive(Clone)]
pub(super) struct Path {
    pub intervals: Vec<Range<usize>>,
    pub slowest: f64,
    pub objective: f64,
}

/// Least cost of a way from the start to each node, or from each node to the end; infinite where there is none.
pub(super) struct Distances {
    pub values: Vec<Vec<f64>>,
}

impl SplitNetwork {
    /// Least distances from the start, costs along a path combined by `combine`.
    pub fn reach(&self, combine: fn(f64, f64) -> f64) -> Distances {
        let mut values = vec![vec![f64::INFINITY; self.cuts]; self.stages.len() + 1];
        values[0][0] = 0.0;
        for (stage, arcs) in self.stages.iter().enumerate() {
            let (before, after) = values.split_at_mut(stage + 1);
            for arc in arcs {
                let way = combine(before[stage][arc.from], arc.time);
                after[0][arc.to] = after[0][arc.to].min(way);
            }
        }
        Distances { values }
    }

    /// Least distances to the end.
    pub fn remain(&self, combine: fn(f64, f64) -> f64) -> Distances {
        let mut values = vec![vec![f64::INFINITY; self.cuts]; self.stages.len() + 1];
        values[self.stages.len()][self.cuts - 1] = 0.0;
        for (stage, arcs) in self.stages.iter().enumerate().rev() {
            let (before, after) = values.split_at_mut(stage + 1);
            for arc in arcs {
                let way = combine(after[0][arc.to], arc.time);
                before[stage][arc.from] = before[stage][arc.from].min(way);
            }
        }
        Distances { values }
    }

    /// The split with the least sum among those with no stage slower than `cap`; among equals the evenest, that is the one
    /// with the least sum of squares.
    pub fn best_path(&self, cap: f64, problem: &Problem) -> Option<Path> {
        const NOWHERE: (f64, f64) = (f64::INFINITY, f64::INFINITY);
        let mut before = vec![NOWHERE; self.cuts];
        before[0] = (0.0, 0.0);
        let mut came: Vec<Vec<u32>> = Vec::with_capacity(self.stages.len());
        for arcs in &self.stages {
            let mut after = vec![NOWHERE; self.cuts];
            let mut by = vec![u32::MAX; self.cuts];
            for (index, arc) in arcs.iter().enumerate().filter(|(_, arc)| arc.time <= cap) {
                let (sum, squares) = before[arc.from];
                let way = (sum + arc.time, squares + arc.time * arc.time);
                if way < after[arc.to] {
                    after[arc.to] = way;
                    by[arc.to] = index as u32;
                }
            }
            before = after;
            came.push(by);
        }
        let (sum, _) = before[self.cuts - 1];
        if sum.is_infinite() {
            return None;
        }
        let mut intervals = vec![0..0; self.stages.len()];
        let (mut cut, mut slowest) = (self.cuts - 1, 0.0f64);
        for stage in (0..self.stages.len()).rev() {
            let arc = self.stages[stage][came[stage][cut] as usize];
            intervals[stage] = arc.from..arc.to;
            slowest = slowest.max(arc.time);
            cut = arc.from;
        }
        Some(Path { intervals, slowest, objective: problem.cost(slowest, sum) })
    }

    /// Drops the arcs through which no split costs less than `most`; whether there were any.
    pub fn prune(&mut self, most: f64, problem: &Problem) -> bool {
        let sums = (self.reach(plus), self.remain(plus));
        let tops = (self.reach(f64::max), self.remain(f64::max));
        let mut dropped = false;
        for (stage, arcs) in self.stages.iter_mut().enumerate() {
            let count = arcs.len();
            arcs.retain(|arc| {
                let sum = sums.0.values[stage][arc.from] + arc.time + sums.1.values[stage + 1][arc.to];
                let top = tops.0.values[stage][arc.from].max(arc.time).max(tops.1.values[stage + 1][arc.to]);
                sum.is_finite() && problem.cost(top, sum) < most
            });
            dropped |= arcs.len() < count;
        }
        dropped
    }

    /// The least slowest time and the least sum of any split, each on its own; infinite if there is no split.
    pub fn least(&self) -> (f64, f64) {
        let end = |distances: Distances| distances.values[self.stages.len()][self.cuts - 1];
        (end(self.reach(f64::max)), end(self.reach(plus)))
    }
}

/// Sum of two, to be passed where a way of combining is asked for.
pub(super) fn plus(a: f64, b: f64) -> f64 {
    a + b
}
