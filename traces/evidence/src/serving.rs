//! Tables of measured serving runs, and the forecasts of their rows.

mod case;
mod figures;
mod forecast;
pub(crate) mod names;
mod null;
pub mod score;
mod table;

pub use case::ServingCase;
pub use forecast::{ServingForecast, forecast};
pub use table::{ServingTable, ServingTableError};
