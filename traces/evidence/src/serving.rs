//! Tables of measured serving runs, and the forecasts of their rows.

mod case;
mod figures;
mod forecast;
mod layout;
pub(crate) mod names;
mod null;
pub mod score;
mod shares;
mod table;

pub use case::ServingCase;
pub use forecast::{ServingForecast, forecast};
pub use shares::{Bound, Share};
pub use table::{ServingTable, ServingTableError};
