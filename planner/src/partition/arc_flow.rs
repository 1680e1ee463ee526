//! The integer program over paths: one binary per arc, one unit of flow from the first cut to the last.
//!
//! ```text
//! min  steady · T + ramp · Σ_a t_a x_a
//! s.t. Σ_a into (s, i) x_a = Σ_a out of (s, i) x_a      for every node but the ends; one unit leaves the start
//!      T ≥ Σ_a of s t_a x_a                             for every stage s
//! ```
//!
//! It is given to the solver as what a split costs beyond the bound, in units of the gap to the best split known: T counts
//! from the least slowest time on, and t_a is replaced by its reduced cost t_a + d(from) − d(to), d the least sum from the
//! start to a node, which lowers every path's sum by the same amount. All coefficients then lie in 0..1.

use super::outcome::Effort;
use super::problem::Problem;
use super::split_network::{Path, SplitNetwork, plus};
use crate::solver::{self, IntegerProgram, Relation};
use trainwright_spec::units::Seconds;

/// What became of the arcs.
pub(super) enum Answer {
    /// The best path through them, or none better than the one known.
    Proved(Option<Path>),
    /// The time limit came first, or the solver's answer is no path.
    Failed,
}

/// Seeks a path that costs less than `most` seconds.
pub(super) fn solve(
    problem: &Problem,
    network: &SplitNetwork,
    most: f64,
    time_limit: Seconds,
    effort: &mut Effort,
) -> Answer {
    let (program, binaries) = formulate(problem, network, most);
    effort.columns += program.columns.len();
    effort.rows += program.rows.len();
    match solver::solve(&program, time_limit) {
        solver::Answer::Optimal { values, nodes } => {
            effort.nodes += nodes;
            match path(problem, network, &binaries, &values) {
                Some(path) => Answer::Proved(Some(path).filter(|path| path.objective < most)),
                None => Answer::Failed,
            }
        }
        solver::Answer::Infeasible => Answer::Proved(None),
        solver::Answer::Failed => Answer::Failed,
    }
}

/// The program, and the column of each arc.
fn formulate(problem: &Problem, network: &SplitNetwork, most: f64) -> (IntegerProgram, Vec<Vec<usize>>) {
    let (least_slowest, least_sum) = network.least();
    let gap = most - problem.cost(least_slowest, least_sum);
    let reached = network.reach(plus);
    let mut program = IntegerProgram::default();
    // What the slowest stage adds to the bound, in units of the gap.
    let slower = program.column(1.0, 1.0);
    let mut binaries = Vec::with_capacity(network.stages.len());
    let mut into: Vec<Vec<(usize, f64)>> = vec![Vec::new(); network.cuts];

    for (stage, arcs) in network.stages.iter().enumerate() {
        let mut out: Vec<Vec<(usize, f64)>> = vec![Vec::new(); network.cuts];
        let mut next: Vec<Vec<(usize, f64)>> = vec![Vec::new(); network.cuts];
        let mut slow_arcs = vec![(slower, -1.0)];
        let mut columns = Vec::with_capacity(arcs.len());
        for arc in arcs {
            let reduced = arc.time + reached.values[stage][arc.from] - reached.values[stage + 1][arc.to];
            let column = program.binary(problem.ramp * reduced / gap);
            columns.push(column);
            out[arc.from].push((column, 1.0));
            next[arc.to].push((column, 1.0));
            if arc.time > least_slowest {
                slow_arcs.push((column, problem.steady * (arc.time - least_slowest) / gap));
            }
        }
        if slow_arcs.len() > 1 {
            program.row(slow_arcs, Relation::AtMost, 0.0);
        }
        for (cut, leaving) in out.into_iter().enumerate() {
            let mut terms = std::mem::take(&mut into[cut]);
            if stage == 0 && !leaving.is_empty() {
                program.row(leaving, Relation::Equal, 1.0);
            } else if !(terms.is_empty() && leaving.is_empty()) {
                terms.extend(leaving.iter().map(|&(column, one)| (column, -one)));
                program.row(terms, Relation::Equal, 0.0);
            }
        }
        into = next;
        binaries.push(columns);
    }
    (program, binaries)
}

/// The path that the rounded values are, if they are one.
fn path(problem: &Problem, network: &SplitNetwork, binaries: &[Vec<usize>], values: &[f64]) -> Option<Path> {
    let mut intervals = Vec::with_capacity(binaries.len());
    let (mut cut, mut slowest, mut sum) = (0, 0.0f64, 0.0);
    for (arcs, columns) in network.stages.iter().zip(binaries) {
        let mut taken = arcs.iter().zip(columns).filter(|(_, column)| values[**column] > 0.5);
        let (arc, _) = taken.next()?;
        if taken.next().is_some() || arc.from != cut {
            return None;
        }
        cut = arc.to;
        slowest = slowest.max(arc.time);
        sum += arc.time;
        intervals.push(arc.from..arc.to);
    }
    let objective = problem.cost(slowest, sum);
    (cut + 1 == network.cuts).then_some(Path { intervals, slowest, objective })
}
