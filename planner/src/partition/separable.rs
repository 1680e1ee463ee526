//! Problems in which no two ranks' costs depend on each other: one stage per rank, or layers all alike.
//!
//! Two proofs: bounds from shortest paths, tightened until they meet, which is the quick one; and the integer program.

use super::arc_flow;
use super::check;
use super::layers::Layers;
use super::network::{Arc, Network, Path};
use super::placement::{Placement, Split, lay_out};
use super::slots::Slots;
use super::{Effort, Infeasible, Method, Outcome, Problem, Route};
use trainwright_spec::units::{Bytes, Seconds};

/// Two objectives that differ by less than this part are equal.
const EQUAL: f64 = 1e-12;

pub(super) fn solve(problem: &Problem, layers: &Layers, route: Route, time_limit: Seconds) -> Outcome {
    let mut slots = Slots::new(problem, layers);
    let windows = Windows::new(&slots, layers.sequence.len());
    let Some(first) = first_split(problem, layers, &mut slots, &windows) else {
        return Outcome::Infeasible(shortage(problem, &mut slots, &windows));
    };
    // No split that beats the first has a slot slower than this: the others cost their fastest time at the least.
    let least_sum = layers.fastest() + slots.list.iter().map(|slot| slot.time).sum::<f64>();
    let cap = if problem.steady > 0.0 {
        ((first.objective - problem.ramp * least_sum) / problem.steady).max(first.slowest)
    } else {
        f64::INFINITY
    };
    let network = windows.network(&mut slots, cap);
    let found = match route {
        Route::Quickest => by_bounds(problem, &network, first),
        Route::IntegerProgram => by_program(problem, &network, first, time_limit),
    };
    // Of all splits as good as the best one, the evenest; it has the same slowest time and at most the same sum.
    let best = network.best_path(found.best.slowest, problem).unwrap_or(found.best);
    let bound = found.bound.min(best.objective);
    match check::solution(problem, place(layers, &mut slots, &best), bound, found.effort) {
        Some(solution) => Outcome::Solved(solution),
        None => Outcome::Undecided { bound: Seconds::new(bound) },
    }
}

/// The best split found, and what no split is faster than.
pub(super) struct Found {
    pub best: Path,
    bound: f64,
    effort: Effort,
}

/// Alternates between better splits and fewer arcs until the bounds meet.
///
/// It ends, as each round drops an arc: the split with the least sum is looked at, so what costs as much as it does is
/// dropped, and through its slowest arc no split costs less.
pub(super) fn by_bounds(problem: &Problem, network: &Network, first: Path) -> Found {
    let mut best = first;
    let mut network = network.clone();
    loop {
        let (least_slowest, least_sum) = network.least();
        for cap in [least_slowest, f64::INFINITY] {
            let path = network.best_path(cap, problem).filter(|path| path.objective < best.objective);
            best = path.unwrap_or(best);
        }
        let bound = problem.objective(least_slowest, least_sum).min(best.objective);
        let met = best.objective - bound <= EQUAL * best.objective;
        if met || !network.prune(best.objective * (1.0 - EQUAL), problem) {
            return Found { bound, best, effort: Effort::default() };
        }
    }
}

/// Whatever arcs the first split's bound leaves go to the solver.
fn by_program(problem: &Problem, network: &Network, first: Path, time_limit: Seconds) -> Found {
    let mut left = network.clone();
    // Until nothing more drops, so that every arc left lies on a whole path.
    while left.prune(first.objective * (1.0 - EQUAL), problem) {}
    let (least_slowest, least_sum) = left.least();
    if least_sum.is_infinite() {
        return Found { bound: first.objective, best: first, effort: Effort::default() };
    }
    let bound = problem.objective(least_slowest, least_sum).min(first.objective);
    let mut effort = Effort { method: Method::IntegerProgram, ..Effort::default() };
    match arc_flow::solve(problem, &left, first.objective, time_limit, &mut effort) {
        arc_flow::Answer::Proved(path) => {
            let best = path.unwrap_or(first);
            Found { bound: best.objective, best, effort }
        }
        arc_flow::Answer::OutOfTime(path) => {
            let better = path.filter(|path| path.objective < first.objective);
            Found { bound, best: better.unwrap_or(first), effort }
        }
        arc_flow::Answer::Failed => Found {
            effort: Effort { method: Method::Bounds, ..effort },
            ..by_bounds(problem, network, first)
        },
    }
}

/// The cuts that each slot can begin and end at.
struct Windows {
    /// Before each slot and after the last: the least and the greatest cut.
    cuts: Vec<(usize, usize)>,
}

impl Windows {
    fn new(slots: &Slots, layers: usize) -> Self {
        let all: usize = slots.list.iter().map(|slot| slot.least()).sum();
        let mut cuts = vec![(0, 0)];
        let mut least = 0;
        for slot in &slots.list {
            least += slot.least();
            cuts.push((least, layers - (all - least)));
        }
        Self { cuts }
    }

    /// Where the intervals of a slot that begin at `from` may end.
    fn ends(&self, slots: &Slots, slot: usize, from: usize) -> std::ops::RangeInclusive<usize> {
        let (least, most) = self.cuts[slot + 1];
        (from + slots.list[slot].least()).max(least)..=most
    }

    /// Every interval that fits and is no slower than `cap`, if a split uses it.
    fn network(&self, slots: &mut Slots, cap: f64) -> Network {
        let count = slots.list.len();
        let cuts = self.cuts[count].1 + 1;
        let mut reached = vec![false; cuts];
        reached[0] = true;
        let mut arcs: Vec<Vec<Arc>> = Vec::with_capacity(count);
        for slot in 0..count {
            let mut next = vec![false; cuts];
            let mut of_slot = Vec::new();
            for from in (self.cuts[slot].0..=self.cuts[slot].1).filter(|&from| reached[from]) {
                for to in self.ends(slots, slot, from) {
                    let Some(time) = within(slots, slot, from, to, cap) else { break };
                    of_slot.push(Arc { from, to, time });
                    next[to] = true;
                }
            }
            arcs.push(of_slot);
            reached = next;
        }
        let mut useful = vec![false; cuts];
        useful[cuts - 1] = true;
        for of_slot in arcs.iter_mut().rev() {
            of_slot.retain(|arc| useful[arc.to]);
            useful.fill(false);
            for arc in of_slot.iter() {
                useful[arc.from] = true;
            }
        }
        Network { slots: arcs, cuts }
    }
}

/// Seconds of a slot with layers `from..to` if it fits and is no slower than `cap`. More layers never make either better.
fn within(slots: &mut Slots, slot: usize, from: usize, to: usize, cap: f64) -> Option<f64> {
    if slots.least_time(slot, from, to) > cap {
        return None;
    }
    let time = slots.time(slot, from, to);
    (time <= cap && time.is_finite()).then_some(time)
}

/// A split to start from, near the least slowest time; none if there is no split at all.
fn first_split(problem: &Problem, layers: &Layers, slots: &mut Slots, windows: &Windows) -> Option<Path> {
    let fixed: f64 = slots.list.iter().map(|slot| slot.time).sum();
    let average = (layers.fastest() + fixed) / slots.list.len() as f64;
    // Ever coarser steps: most splits lie a few layers above the average, recompute can double it, a heavy head exceed all.
    const STEPS: [f64; 9] = [1.02, 1.06, 1.12, 1.25, 1.5, 2.0, 4.0, 16.0, f64::INFINITY];
    STEPS.iter().find_map(|step| {
        let cap = if step.is_finite() { average * step } else { f64::INFINITY };
        let network = windows.network(slots, cap);
        network.best_path(network.least().0, problem)
    })
}

/// The memory that the worst-off rank lacks in the split in which it lacks least.
fn shortage(problem: &Problem, slots: &mut Slots, windows: &Windows) -> Infeasible {
    let count = slots.list.len();
    let cuts = windows.cuts[count].1 + 1;
    // Excess can be negative, so the walk starts from minus infinity.
    let mut worst = vec![vec![(f64::INFINITY, 0usize); cuts]; count + 1];
    worst[0][0] = (f64::NEG_INFINITY, 0);
    for slot in 0..count {
        for from in windows.cuts[slot].0..=windows.cuts[slot].1 {
            let (before, named) = worst[slot][from];
            for to in windows.ends(slots, slot, from) {
                let excess = slots.excess(slot, from, to);
                let way = if excess > before { (excess, slot) } else { (before, named) };
                if way.0 < worst[slot + 1][to].0 {
                    worst[slot + 1][to] = way;
                }
            }
        }
    }
    let (excess, slot) = worst[count][cuts - 1];
    let rank = slots.list[slot].rank;
    let limit = problem.ranks[rank].memory;
    Infeasible::Memory { rank, needs: limit + Bytes::new(excess.max(0.0)), limit }
}

/// The layers and choices of each stage on a path.
fn place(layers: &Layers, slots: &mut Slots, path: &Path) -> Split {
    let stages = slots.list.iter().map(|slot| slot.stages.len()).sum();
    let mut placements = vec![Placement::default(); stages];
    for (slot, interval) in path.intervals.iter().enumerate() {
        for (stage, placement) in slots.place(slot, interval.start, interval.end) {
            placements[stage] = placement;
        }
    }
    lay_out(layers, &placements)
}
