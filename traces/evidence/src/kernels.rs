//! Measured kernels of inference libraries: tables of them (`table`), coefficients fitted to them (`fit`), and the errors
//! of forecasts, with and without a GPU's own measurements (`score`).
//!
//! ```text
//! CSV ─► table: Case ─┬─► fit ─► Library (spec/catalog/libraries)
//!                     └─► score: errors by table and GPU
//! ```

mod cells;
pub mod fit;
mod kinds;
pub mod nearest;
pub mod score;
mod search;
pub mod table;

pub use cells::Cells;
pub use table::{Case, Forecast, KernelTable, KernelTableError, NoCase, Work};
