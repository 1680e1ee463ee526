//! Training runs as rows of a table, each a measured or hypothetical run.
//!
//! ```text
//! CSV ─► Run (a row) ─► Completed (`complete`: blanks filled, and which) ─► Plan (`plan`) ─► forecast, elsewhere
//! ```
//!
//! The columns are those of `traces/published/README.md`. Blank cells get the default that the column's field
//! states. Nothing here reads a measurement on the way from a row to its plan.

mod adapters;
mod assumptions;
mod cluster;
mod columns;
mod complete;
mod experts;
mod layout;
mod model;
mod names;
mod plan;
mod recompute;
mod rl;
mod row;
mod sizes;
mod stages;
pub(crate) mod table;

pub use assumptions::{Assumption, Completed, Kind};
pub use rl::{PHASE_COLUMNS, RlCase, RlFigures};
pub use row::{Outcome, Run};
pub use table::{FORECAST_COLUMNS, Prediction, Table, TableError};

use thiserror::Error;

/// Why a row has no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoPlan {
    /// It contradicts itself, or a cell is not what its column holds.
    #[error("{0}")]
    Invalid(String),
    /// It has something that a plan cannot express, or lacks a value without default.
    #[error("{0}")]
    Unsupported(String),
}

impl NoPlan {
    fn missing(column: &str) -> Self {
        NoPlan::Unsupported(format!("`{column}` is blank and has no default"))
    }
}
