//! The one file that knows a solver: an integer linear program in, values out.
//!
//! Another solver of `good_lp` is another function like [`solve`].

use good_lp::solvers::{ObjectiveDirection, SolutionStatus};
use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, WithTimeLimit, microlp,
    variable,
};
use std::time::Duration;
use trainwright_spec::units::Seconds;

/// Minimise the columns' costs such that every row holds.
#[derive(Default)]
pub(crate) struct IntegerProgram {
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
}

/// A variable, from 0 to `most`.
pub(crate) struct Column {
    pub cost: f64,
    pub most: f64,
    pub integer: bool,
}

/// Σ coefficient · column, compared with `right`.
pub(crate) struct Row {
    pub terms: Vec<(usize, f64)>,
    pub relation: Relation,
    pub right: f64,
}

/// How a row compares.
pub(crate) enum Relation {
    Equal,
    AtMost,
    AtLeast,
}

/// What a solver says; not to be trusted without a check.
pub(crate) enum Answer {
    Optimal {
        values: Vec<f64>,
        nodes: usize,
    },
    Infeasible,
    /// The solver gave up, or the time limit came before its proof.
    Failed,
}

impl IntegerProgram {
    pub fn column(&mut self, cost: f64, most: f64) -> usize {
        self.columns.push(Column { cost, most, integer: false });
        self.columns.len() - 1
    }

    pub fn binary(&mut self, cost: f64) -> usize {
        self.integer(cost, 1.0)
    }

    pub fn integer(&mut self, cost: f64, most: f64) -> usize {
        self.columns.push(Column { cost, most, integer: true });
        self.columns.len() - 1
    }

    pub fn row(&mut self, terms: Vec<(usize, f64)>, relation: Relation, right: f64) {
        self.rows.push(Row { terms, relation, right });
    }
}

/// Asks microlp, a branch-and-cut solver in Rust, by way of `good_lp`.
pub(crate) fn solve(program: &IntegerProgram, time_limit: Seconds) -> Answer {
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
    let mut model = names
        .optimise(ObjectiveDirection::Minimisation, cost)
        .using(microlp)
        .with_time_limit(Duration::from_secs_f64(time_limit.get().clamp(0.0, 1e6)).as_secs_f64());
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
    match model.solve() {
        Ok(solution) if matches!(solution.status(), SolutionStatus::Optimal) => Answer::Optimal {
            values: columns.iter().map(|&column| solution.value(column)).collect(),
            nodes: solution.into_inner().stats().nodes_solved as usize,
        },
        Err(ResolutionError::Infeasible) => Answer::Infeasible,
        Ok(_) | Err(_) => Answer::Failed,
    }
}
