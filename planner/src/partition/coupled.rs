//! Ranks with several stages and layers of several classes: an integer program over stages, since distant intervals share
//! a rank's memory and time.
//!
//! A column is a stage with how many layers it takes, of which runs, in which mix. Where inside a run a stage begins does
//! not matter, so a node of the flow is (stage, run) and a row per run sees to it that all its layers are taken:
//!
//! ```text
//! min  steady · T + ramp · Σ_c t_c x_c
//! s.t. flow of one unit from (0, first run) to (last stage, past the last run)
//!      Σ_c layers of run k in c · x_c = layers of run k                   for every run k
//!      T ≥ Σ_c of rank r t_c x_c                                          for every rank r
//!      Σ_c of rank r memory_c x_c + Σ_c of stage s peak_c x_c ≤ limit_r   for every stage s of every rank r
//! ```
//!
//! Local search gives a split to beat. If it finds none that fits, and the bounds do not rule one out, the same program with
//! the least shortage as objective finds one or proves that there is none. Where the layers have few runs, all patterns of
//! stages over runs are tried instead ([`super::pattern_search`]), which is quicker by far.

use super::check;
use super::columns::{Caps, Chain, Column, columns, longest};
use super::coupled_search::{LocalSearch, State};
use super::layers::Layers;
use super::mixes::Mixes;
use super::pattern_search;
use super::patterns::{self, Pattern};
use super::placement::{Placement, Split, lay_out};
use super::relaxed;
use super::solver::{self, Answer, IntegerProgram, Relation};
use super::{Effort, Infeasible, Method, Outcome, Problem, Route, Solution};
use trainwright_spec::units::{Bytes, Seconds};

/// Two objectives that differ by less than this part are equal.
const EQUAL: f64 = 1e-12;

/// Patterns and counts of layers by run up to which trying all patterns takes some 100 ms at most.
const MOST_PATTERNS: usize = 2000;
const MOST_CODES: usize = 4096;

pub(super) fn solve(problem: &Problem, layers: &Layers, route: Route, time_limit: Seconds) -> Outcome {
    let chain = Chain::new(problem, layers);
    let mut mixes = Mixes::new(layers);
    let mut effort = Effort::default();
    let least_sum = layers.fastest() + layers.stage_times.iter().sum::<f64>();
    let mut search = LocalSearch::new(problem, layers, &chain, &mut mixes);
    let mut start = search.descend(search.even_cuts());
    if !start.fits() {
        if relaxed::never_fits(problem, layers, search.mixes) {
            let (rank, lacks) = search.worst(&start);
            let limit = problem.ranks[rank].memory;
            return Outcome::Infeasible(Infeasible::Memory { rank, needs: limit + lacks, limit });
        }
        match least_shortage(problem, layers, &chain, search.mixes, time_limit, &mut effort) {
            Shortage::None(cuts) => start = search.descend(cuts),
            Shortage::Proved(infeasible) => return Outcome::Infeasible(infeasible),
            Shortage::Unknown => {
                let slowest = least_sum / problem.ranks.len() as f64;
                return Outcome::Undecided { bound: Seconds::new(problem.objective(slowest, least_sum)) };
            }
        }
    }
    let known = search.split(&start);
    let (least_slowest, least_sum) = relaxed::bounds(problem, layers, search.mixes, start.objective);
    let bound = problem.objective(least_slowest, least_sum).min(start.objective);
    if start.objective - bound <= EQUAL * start.objective {
        return outcome(problem, known, bound, effort);
    }
    if route == Route::Quickest
        && let Some(patterns) = few_patterns(problem, layers, &chain, &start, least_sum)
    {
        let better =
            pattern_search::best_split(problem, layers, &chain, &patterns, start.objective, least_sum);
        let split = better.unwrap_or(known);
        let objective = check::measure(problem, &split).map(|measured| measured.objective.get());
        return outcome(problem, split, objective.unwrap_or(bound), effort);
    }
    effort.method = Method::IntegerProgram;
    let goal = Goal { start: &start, least_slowest, least_sum };
    let (split, bound) = improve(problem, layers, &chain, search.mixes, &goal, time_limit, &mut effort);
    let found = split.and_then(|split| check::solution(problem, split, bound, effort));
    let known = check::solution(problem, known, bound, effort);
    match (found, known) {
        (Some(found), Some(known)) if found.objective.get() < known.objective.get() => Outcome::Solved(found),
        (found, known) => {
            known.or(found).map_or(Outcome::Undecided { bound: Seconds::new(bound) }, Outcome::Solved)
        }
    }
}

/// The patterns that a split better than the start can have, if they are few enough to try them all.
fn few_patterns(
    problem: &Problem,
    layers: &Layers,
    chain: &Chain,
    start: &State,
    least_sum: f64,
) -> Option<Vec<Pattern>> {
    if problem.steady == 0.0 || pattern_search::codes(chain).is_none_or(|codes| codes > MOST_CODES) {
        return None;
    }
    let caps = Caps { most: start.objective, least_slowest: 0.0, fastest_sum: least_sum };
    patterns::patterns(chain, &longest(problem, layers, chain, Some(&caps)), MOST_PATTERNS)
}

fn outcome(problem: &Problem, split: Split, bound: f64, effort: Effort) -> Outcome {
    let solution: Option<Solution> = check::solution(problem, split, bound, effort);
    solution.map_or(Outcome::Undecided { bound: Seconds::new(bound) }, Outcome::Solved)
}

/// What the program is to beat, and what it cannot.
struct Goal<'a> {
    start: &'a State,
    least_slowest: f64,
    least_sum: f64,
}

/// The best split by integer program, if it is better than the start, and what no split is faster than.
fn improve(
    problem: &Problem,
    layers: &Layers,
    chain: &Chain,
    mixes: &mut Mixes,
    goal: &Goal,
    time_limit: Seconds,
    effort: &mut Effort,
) -> (Option<Split>, f64) {
    let most = goal.start.objective * (1.0 - EQUAL);
    let fastest_sum = layers.fastest() + layers.stage_times.iter().sum::<f64>();
    let caps = Caps { most, least_slowest: goal.least_slowest, fastest_sum };
    let list = columns(problem, layers, chain, mixes, Some(&caps));
    let bound = problem.objective(goal.least_slowest, goal.least_sum).min(goal.start.objective);
    // Costs are what a split adds to all layers at their fastest, in units of the gap to the split to beat.
    let base = problem.objective(goal.least_slowest, fastest_sum);
    let gap = most - base;
    let mut program = IntegerProgram::default();
    for column in &list {
        program.binary(problem.ramp * column.detour / gap);
    }
    flow_rows(&mut program, chain, &list);
    memory_rows(&mut program, problem, chain, &list, None);
    if problem.steady > 0.0 {
        let slower = program.column(1.0, 1.0);
        let scale = goal.start.slowest;
        for rank in 0..problem.ranks.len() {
            let mut terms = vec![(slower, -gap / (problem.steady * scale))];
            let of_rank = list.iter().enumerate().filter(|(_, column)| chain.ranks[column.stage] == rank);
            terms.extend(of_rank.map(|(index, column)| (index, column.time / scale)));
            program.row(terms, Relation::AtMost, goal.least_slowest / scale);
        }
    }
    if problem.ramp > 0.0 && goal.least_sum > fastest_sum {
        let terms = list.iter().enumerate().filter(|(_, column)| column.detour > 0.0);
        let scale = 1.0 / (goal.least_sum - fastest_sum);
        program.row(
            terms.map(|(index, column)| (index, -column.detour * scale)).collect(),
            Relation::AtMost,
            -1.0,
        );
    }
    effort.columns += program.columns.len();
    effort.rows += program.rows.len();
    match solver::solve(&program, time_limit) {
        Answer::Values { values, proved, nodes } => {
            effort.nodes += nodes;
            let found = taken(&list, chain, &values).map(|columns| placed(layers, mixes, &columns));
            let measured = found.as_ref().and_then(|split| check::measure(problem, split));
            match measured {
                Some(measured) if proved => (found, measured.objective.get().min(goal.start.objective)),
                _ => (found, bound),
            }
        }
        Answer::Infeasible => (None, goal.start.objective),
        Answer::OutOfTime | Answer::Failed => (None, bound),
    }
}

/// Whether any split fits.
enum Shortage {
    /// The cuts of one that does.
    None(Vec<usize>),
    Proved(Infeasible),
    Unknown,
}

/// The split whose worst rank lacks least memory.
fn least_shortage(
    problem: &Problem,
    layers: &Layers,
    chain: &Chain,
    mixes: &mut Mixes,
    time_limit: Seconds,
    effort: &mut Effort,
) -> Shortage {
    let list = columns(problem, layers, chain, mixes, None);
    let mut program = IntegerProgram::default();
    for _ in &list {
        program.binary(0.0);
    }
    let scale = problem.ranks.iter().map(|rank| rank.memory.get().abs()).fold(1.0, f64::max);
    let lacking = program.column(1.0, f64::INFINITY);
    flow_rows(&mut program, chain, &list);
    memory_rows(&mut program, problem, chain, &list, Some((lacking, scale)));
    effort.columns += program.columns.len();
    effort.rows += program.rows.len();
    let Answer::Values { values, proved, nodes } = solver::solve(&program, time_limit) else {
        return Shortage::Unknown;
    };
    effort.nodes += nodes;
    let Some(columns) = taken(&list, chain, &values) else { return Shortage::Unknown };
    let mut worst: Option<(f64, usize)> = None;
    for (rank, limit) in problem.ranks.iter().enumerate() {
        let of_rank = || columns.iter().filter(|column| chain.ranks[column.stage] == rank);
        let held: f64 = of_rank().map(|column| column.memory).sum();
        let peak = of_rank().map(|column| column.peak).fold(0.0, f64::max);
        let excess = held + peak - limit.memory.get();
        if worst.is_none_or(|(most, _)| excess > most) {
            worst = Some((excess, rank));
        }
    }
    let Some((excess, rank)) = worst else { return Shortage::Unknown };
    let limit = problem.ranks[rank].memory;
    if super::fits(limit.get() + excess, limit.get()) {
        let mut cuts = vec![0];
        for column in &columns {
            cuts.push(cuts[cuts.len() - 1] + mixes.totals(column.composition).layers);
        }
        Shortage::None(cuts)
    } else if proved {
        Shortage::Proved(Infeasible::Memory { rank, needs: limit + Bytes::new(excess), limit })
    } else {
        Shortage::Unknown
    }
}

/// Flow through (stage, run), and every run's layers taken.
fn flow_rows(program: &mut IntegerProgram, chain: &Chain, list: &[Column]) {
    let stages = chain.ranks.len();
    let nodes = chain.runs.len() + 1;
    let mut balance: Vec<Vec<(usize, f64)>> = vec![Vec::new(); (stages + 1) * nodes];
    let mut layers: Vec<Vec<(usize, f64)>> = vec![Vec::new(); chain.runs.len()];
    for (index, column) in list.iter().enumerate() {
        balance[column.stage * nodes + column.from].push((index, -1.0));
        balance[(column.stage + 1) * nodes + column.to].push((index, 1.0));
        for &(run, count) in &column.taken {
            layers[run].push((index, count as f64));
        }
    }
    for (node, terms) in balance.into_iter().enumerate() {
        let start = node == 0;
        let end = node == stages * nodes + nodes - 1;
        if start {
            program.row(terms, Relation::Equal, -1.0);
        } else if !terms.is_empty() && !end {
            program.row(terms, Relation::Equal, 0.0);
        }
    }
    for (run, terms) in chain.runs.iter().zip(layers) {
        // The flow alone takes a run of one layer exactly once.
        if run.count > 1 {
            program.row(terms, Relation::Equal, run.count as f64);
        }
    }
}

/// Every rank's memory, in parts of its limit, or of `scale` beyond which column `lacking` makes up for it.
fn memory_rows(
    program: &mut IntegerProgram,
    problem: &Problem,
    chain: &Chain,
    list: &[Column],
    lacking: Option<(usize, f64)>,
) {
    for (rank, limit) in problem.ranks.iter().enumerate() {
        let limit = limit.memory.get();
        let scale = lacking.map_or(limit.abs().max(1.0), |(_, scale)| scale);
        let of_rank: Vec<(usize, &Column)> =
            list.iter().enumerate().filter(|(_, column)| chain.ranks[column.stage] == rank).collect();
        let stages: Vec<usize> = (0..chain.ranks.len()).filter(|&stage| chain.ranks[stage] == rank).collect();
        let most = |stage: usize, of: fn(&Column) -> f64| {
            let of_stage = of_rank.iter().filter(|(_, column)| column.stage == stage);
            of_stage.map(|(_, column)| of(column)).fold(0.0, f64::max)
        };
        let fullest: f64 = stages.iter().map(|&stage| most(stage, |column| column.memory)).sum();
        for &stage in &stages {
            // A row that no choice of columns can break only slows the solver down.
            if lacking.is_none() && fullest + most(stage, |column| column.peak) <= limit {
                continue;
            }
            let mut terms: Vec<(usize, f64)> = of_rank
                .iter()
                .map(|(index, column)| {
                    let peak = if column.stage == stage { column.peak } else { 0.0 };
                    (*index, (column.memory + peak) / scale)
                })
                .collect();
            terms.extend(lacking.map(|(column, _)| (column, -1.0)));
            program.row(terms, Relation::AtMost, limit / scale);
        }
    }
}

/// One column per stage, in order, if the rounded values say so.
fn taken<'a>(list: &'a [Column], chain: &Chain, values: &[f64]) -> Option<Vec<&'a Column>> {
    let chosen: Vec<&Column> =
        list.iter().zip(values).filter(|(_, value)| **value > 0.5).map(|(column, _)| column).collect();
    let in_order = chosen.iter().enumerate().all(|(stage, column)| column.stage == stage);
    let mut counts = vec![0; chain.runs.len()];
    for &(run, count) in chosen.iter().flat_map(|column| &column.taken) {
        counts[run] += count;
    }
    let complete = counts.iter().zip(&chain.runs).all(|(&count, run)| count == run.count);
    (in_order && complete && chosen.len() == chain.ranks.len()).then_some(chosen)
}

fn placed(layers: &Layers, mixes: &mut Mixes, columns: &[&Column]) -> Split {
    let placements: Vec<Placement> = columns
        .iter()
        .map(|column| Placement {
            length: mixes.totals(column.composition).layers,
            taken: mixes.choice_counts(column.composition, column.mix),
        })
        .collect();
    lay_out(layers, &placements)
}
