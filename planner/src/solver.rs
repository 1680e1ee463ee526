//! The one file that knows a solver: an integer linear program in, values out.
//!
//! Another solver of `good_lp` is another function like [`search`].

use good_lp::solvers::ObjectiveDirection;
use good_lp::{Expression, ProblemVariables, SolverModel, Variable, microlp as microlp_model, variable};
use microlp::{Error, SolveOptions, SolveOutcome, TerminationReason};
use std::time::Duration;
use trainwright_spec::units::Seconds;

/// Minimise the columns' costs such that every row holds.
#[derive(Default)]
pub struct IntegerProgram {
    /// Its variables.
    pub columns: Vec<Column>,
    /// Its constraints.
    pub rows: Vec<Row>,
}

/// A variable, from 0 to `most`.
pub struct Column {
    /// What one of it adds to the objective.
    pub cost: f64,
    /// Its upper bound.
    pub most: f64,
    /// Whether it must be whole.
    pub integer: bool,
}

/// Σ coefficient · column, compared with `right`.
pub struct Row {
    /// Columns with their coefficients.
    pub terms: Vec<(usize, f64)>,
    /// How it compares.
    pub relation: Relation,
    /// The right side.
    pub right: f64,
}

/// How a row compares.
pub enum Relation {
    /// =
    Equal,
    /// ≤
    AtMost,
    /// ≥
    AtLeast,
}

/// What a solver says; not to be trusted without a check.
pub enum Answer {
    /// Values of the columns that are proved to be the best.
    Optimal {
        /// One for each column.
        values: Vec<f64>,
        /// Nodes of the search.
        nodes: usize,
    },
    /// No values keep all rows.
    Infeasible,
    /// The solver gave up, or the time limit came before its proof.
    Failed,
}

impl IntegerProgram {
    /// Adds a column that need not be whole.
    pub fn column(&mut self, cost: f64, most: f64) -> usize {
        self.columns.push(Column { cost, most, integer: false });
        self.columns.len() - 1
    }

    /// Adds a column that is 0 or 1.
    pub fn binary(&mut self, cost: f64) -> usize {
        self.integer(cost, 1.0)
    }

    /// Adds a column that is whole.
    pub fn integer(&mut self, cost: f64, most: f64) -> usize {
        self.columns.push(Column { cost, most, integer: true });
        self.columns.len() - 1
    }

    /// Adds a row.
    pub fn row(&mut self, terms: Vec<(usize, f64)>, relation: Relation, right: f64) {
        self.rows.push(Row { terms, relation, right });
    }
}

/// How long a search may take. Nodes alone give the same answer on every machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Time; `None`: no limit.
    pub time: Option<Seconds>,
    /// Nodes of branch and bound after the first relaxation; `None`: no limit.
    pub nodes: Option<u64>,
}

/// What a search found; not to be trusted without a check.
#[derive(Debug, Clone, Default)]
pub struct Searched {
    /// The best values found; `None` without any.
    pub values: Option<Vec<f64>>,
    /// Whether these are proved to be the best, or that there are none.
    pub proved: bool,
    /// What no values are below; `None` if that is not known.
    pub bound: Option<f64>,
    /// Nodes of the search.
    pub nodes: usize,
}

/// Asks microlp, a branch-and-cut solver in Rust, by way of `good_lp`, which has no limit of nodes and hands out no bounds: these
/// are microlp's own.
pub fn search(program: &IntegerProgram, limits: Limits) -> Searched {
    let mut names = ProblemVariables::new();
    let columns: Vec<Variable> = program
        .columns
        .iter()
        .map(|column| {
            let bounded = variable().min(0.0).max(column.most);
            names.add(if column.integer { bounded.integer() } else { bounded })
        })
        .collect();
    let mut cost = Expression::with_capacity(columns.len());
    for (column, &name) in program.columns.iter().zip(&columns) {
        if column.cost != 0.0 {
            cost.add_mul(column.cost, name);
        }
    }
    let mut model = names.optimise(ObjectiveDirection::Minimisation, cost).using(microlp_model);
    for row in &program.rows {
        let mut sum = Expression::with_capacity(row.terms.len());
        for &(column, coefficient) in &row.terms {
            sum.add_mul(coefficient, columns[column]);
        }
        model.add_constraint(match row.relation {
            Relation::Equal => sum.eq(row.right),
            Relation::AtMost => sum.leq(row.right),
            Relation::AtLeast => sum.geq(row.right),
        });
    }
    let time = limits.time.map(|time| Duration::from_secs_f64(time.get().clamp(0.0, 1e6)));
    let mut options = SolveOptions::default();
    (options.time_limit, options.node_limit) = (time, limits.nodes);
    let nodes = |outcome: &SolveOutcome| outcome.stats().nodes_solved as usize;
    match model.as_inner().solve_with(options) {
        Ok(outcome) => {
            let solution = outcome.solution();
            let all = solution.map(|solution| solution.iter().map(|(_, value)| value).collect());
            Searched {
                values: all,
                proved: outcome.termination_reason() == TerminationReason::ProvenOptimal,
                bound: outcome.stats().best_bound,
                nodes: nodes(&outcome),
            }
        }
        Err(Error::Infeasible) => Searched { proved: true, ..Searched::default() },
        Err(_) => Searched::default(),
    }
}

/// The best values, if they are found and proved within about `time_limit`.
pub fn solve(program: &IntegerProgram, time_limit: Seconds) -> Answer {
    let searched = search(program, Limits { time: Some(time_limit), nodes: None });
    match searched {
        Searched { values: Some(values), proved: true, nodes, .. } => Answer::Optimal { values, nodes },
        Searched { values: None, proved: true, .. } => Answer::Infeasible,
        Searched { .. } => Answer::Failed,
    }
}
