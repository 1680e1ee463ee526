//! Training runs as rows of a table: one measured, or merely imagined, run each.
//!
//! ```text
//! CSV ─► Run (what a row says) ─► Plan (what it means, `plan`) ─► forecast, elsewhere
//! ```
//!
//! The columns are those of `traces/published/README.md`. What a row leaves blank gets the default that the column's
//! field states. Nothing here reads a measurement on the way from a row to its plan.

mod cluster;
mod model;
mod plan;
mod row;
mod stages;
mod table;

pub use row::{Outcome, Run};
pub use table::{FORECAST_COLUMNS, Prediction, Table, TableError};

use thiserror::Error;

/// Why a row has no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoPlan {
    /// It contradicts itself, or a cell is not what its column holds.
    #[error("{0}")]
    Invalid(String),
    /// It says something that cannot be expressed, or leaves out what has no default.
    #[error("{0}")]
    Unsupported(String),
}

impl NoPlan {
    fn missing(column: &str) -> Self {
        NoPlan::Unsupported(format!("`{column}` is blank and has no default"))
    }
}
