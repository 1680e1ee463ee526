//! The best split: shortest paths bound it and drop what cannot be part of it, the integer program chooses among what is
//! left, and shortest paths check its choice.

use super::arc_flow::{self, Answer};
use super::counted_layers::CountedLayers;
use super::intervals::Intervals;
use super::outcome::{Effort, Infeasible, Method, Outcome};
use super::problem::{Problem, TOLERANCE};
use super::split_network::{Arc, Path, SplitNetwork};
use super::stage_layout::{StageMix, lay_out};
use super::verify;
use std::ops::{Range, RangeInclusive};
use trainwright_spec::units::{Bytes, Seconds};

/// Two objectives that differ by less than this part are equal.
const EQUAL: f64 = 1e-12;

/// The most arcs that are given to the solver: its time and memory grow faster than linearly with them.
const MOST_ARCS: usize = 4000;

pub(super) fn solve(problem: &Problem, layers: &CountedLayers, time_limit: Seconds) -> Outcome {
    let mut intervals = Intervals::new(problem, layers);
    let least = problem.stages.iter().map(|stage| stage.least_layers).collect();
    let windows = Windows { least, layers: layers.sequence.len() };
    let Some(first) = first_split(problem, layers, &mut intervals, &windows) else {
        return Outcome::Infeasible(shortage(problem, &mut intervals, &windows));
    };
    // No split that beats the first has a stage slower than this: the others cost their fastest time at the least.
    let least_sum = layers.fastest() + layers.stage_times.iter().sum::<f64>();
    let cap = if problem.steady > 0.0 {
        ((first.objective - problem.ramp * least_sum) / problem.steady).max(first.slowest)
    } else {
        f64::INFINITY
    };
    let network = windows.network(&mut intervals, cap);
    let (best, bound, effort) = best_path(problem, &network, first, time_limit);
    // Of all splits as good as the best one, the evenest; it has the same slowest time and at most the same sum.
    let best = network.best_path(best.slowest, problem).unwrap_or(best);
    let bound = bound.min(best.objective);
    let stages = best.intervals.iter().enumerate();
    let placements: Vec<StageMix> =
        stages.map(|(stage, interval)| intervals.place(stage, interval.start, interval.end)).collect();
    match verify::solution(problem, lay_out(layers, &placements), bound, effort) {
        Some(solution) => Outcome::Solved(solution),
        None => Outcome::Undecided,
    }
}

/// The best split, what no split is faster than, and what it took.
fn best_path(
    problem: &Problem,
    network: &SplitNetwork,
    first: Path,
    time_limit: Seconds,
) -> (Path, f64, Effort) {
    let mut left = network.clone();
    let mut best = first;
    let mut effort = Effort::default();
    // What is as good stays; until nothing more drops, so that every arc left lies on a path from end to end.
    let most = best.objective * (1.0 + TOLERANCE);
    while left.prune(most, problem) {}
    let arcs: usize = left.stages.iter().map(Vec::len).sum();
    let several = arcs > left.stages.len();
    if several
        && arcs <= MOST_ARCS
        && let Answer::Proved(Some(path)) = arc_flow::solve(problem, &left, most, time_limit, &mut effort)
    {
        effort.method = Method::IntegerProgram;
        best = path;
    }
    let chosen = best.objective;
    let (best, bound) = tighten(problem, left, best);
    if best.objective < chosen * (1.0 - TOLERANCE) {
        // The solver was wrong.
        effort.method = Method::ShortestPaths;
    }
    (best, bound, effort)
}

/// Alternates between better splits and fewer arcs until the bounds meet, which proves the best split.
///
/// It ends, as each round drops an arc: the split with the least sum is looked at, so what costs as much as it does is
/// dropped, and through its slowest arc no split costs less.
fn tighten(problem: &Problem, mut network: SplitNetwork, mut best: Path) -> (Path, f64) {
    loop {
        best = better_of(problem, &network, best);
        let bound = bound(problem, &network, &best);
        if met(&best, bound) || !network.prune(best.objective * (1.0 - EQUAL), problem) {
            return (best, bound);
        }
    }
}

/// The best of `best` and the two shortest paths: that with the least slowest time, that with the least sum.
fn better_of(problem: &Problem, network: &SplitNetwork, mut best: Path) -> Path {
    for cap in [network.least().0, f64::INFINITY] {
        let path = network.best_path(cap, problem).filter(|path| path.objective < best.objective);
        best = path.unwrap_or(best);
    }
    best
}

/// What no split is faster than: a path of the network, or `best`, than which no split outside it is faster.
fn bound(problem: &Problem, network: &SplitNetwork, best: &Path) -> f64 {
    let (least_slowest, least_sum) = network.least();
    problem.cost(least_slowest, least_sum).min(best.objective)
}

fn met(best: &Path, bound: f64) -> bool {
    best.objective - bound <= EQUAL * best.objective
}

/// Where stages can begin and end.
struct Windows {
    /// The fewest layers of each stage.
    least: Vec<usize>,
    layers: usize,
}

impl Windows {
    /// Where a stage may begin.
    fn begins(&self, stage: usize) -> RangeInclusive<usize> {
        match stage {
            0 => 0..=0,
            _ => self.needed(0..stage)..=self.layers - self.needed(stage..self.least.len()),
        }
    }

    /// The fewest layers of some stages together.
    fn needed(&self, stages: Range<usize>) -> usize {
        self.least[stages].iter().sum()
    }

    /// Where the intervals of a stage that begin at `from` may end.
    fn ends(&self, stage: usize, from: usize) -> RangeInclusive<usize> {
        let after = stage + 1..self.least.len();
        match after.is_empty() {
            true => self.layers..=self.layers,
            false => from + self.least[stage]..=self.layers - self.needed(after),
        }
    }

    /// Every interval that fits and is no slower than `cap`, if a split uses it.
    fn network(&self, intervals: &mut Intervals, cap: f64) -> SplitNetwork {
        let cuts = self.layers + 1;
        let mut reached = vec![false; cuts];
        reached[0] = true;
        let mut arcs: Vec<Vec<Arc>> = Vec::with_capacity(self.least.len());
        for stage in 0..self.least.len() {
            let mut next = vec![false; cuts];
            let mut of_stage = Vec::new();
            for from in self.begins(stage).filter(|&from| reached[from]) {
                for to in self.ends(stage, from) {
                    let Some(time) = within(intervals, stage, from, to, cap) else { break };
                    of_stage.push(Arc { from, to, time });
                    next[to] = true;
                }
            }
            arcs.push(of_stage);
            reached = next;
        }
        let mut useful = vec![false; cuts];
        useful[cuts - 1] = true;
        for of_stage in arcs.iter_mut().rev() {
            of_stage.retain(|arc| useful[arc.to]);
            useful.fill(false);
            for arc in of_stage.iter() {
                useful[arc.from] = true;
            }
        }
        SplitNetwork { stages: arcs, cuts }
    }
}

/// Seconds of a stage with layers `from..to` if it fits and is no slower than `cap`. More layers never make either better.
fn within(intervals: &mut Intervals, stage: usize, from: usize, to: usize, cap: f64) -> Option<f64> {
    if intervals.least_time(stage, from, to) > cap {
        return None;
    }
    let time = intervals.time(stage, from, to);
    (time <= cap && time.is_finite()).then_some(time)
}

/// A split to start from, near the least slowest time; `None` if there is none.
fn first_split(
    problem: &Problem,
    layers: &CountedLayers,
    intervals: &mut Intervals,
    windows: &Windows,
) -> Option<Path> {
    let fixed: f64 = layers.stage_times.iter().sum();
    let average = (layers.fastest() + fixed) / windows.least.len() as f64;
    // Ever coarser steps: most splits lie a few layers above the average, recompute can double it, a heavy head exceed all.
    const STEPS: [f64; 9] = [1.02, 1.06, 1.12, 1.25, 1.5, 2.0, 4.0, 16.0, f64::INFINITY];
    STEPS.iter().find_map(|step| {
        let cap = if step.is_finite() { average * step } else { f64::INFINITY };
        let network = windows.network(intervals, cap);
        network.best_path(network.least().0, problem)
    })
}

/// The memory that the worst-off stage lacks in the split in which it lacks least.
fn shortage(problem: &Problem, intervals: &mut Intervals, windows: &Windows) -> Infeasible {
    let cuts = windows.layers + 1;
    // Excess can be negative, so the walk starts from minus infinity.
    let mut worst = vec![vec![(f64::INFINITY, 0usize); cuts]; windows.least.len() + 1];
    worst[0][0] = (f64::NEG_INFINITY, 0);
    for stage in 0..windows.least.len() {
        for from in windows.begins(stage) {
            let (before, named) = worst[stage][from];
            for to in windows.ends(stage, from) {
                let excess = intervals.excess(stage, from, to);
                let way = if excess > before { (excess, stage) } else { (before, named) };
                if way.0 < worst[stage + 1][to].0 {
                    worst[stage + 1][to] = way;
                }
            }
        }
    }
    let (excess, stage) = worst[windows.least.len()][cuts - 1];
    let limit = problem.stages[stage].limit;
    Infeasible::Memory { stage, needs: limit + Bytes::new(excess.max(0.0)), limit }
}
