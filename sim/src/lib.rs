//! The simulator: what a program does in time on given hardware.
//!
//! It never reads a clock, a thread count or a random source: the same program and costs give the same timeline.

pub mod compute;
pub mod costs;
pub mod engine;
pub mod flow;
mod forecast;
pub mod goodput;
pub mod host;
mod kinds;
mod mix;
pub mod network;
mod repeated;
pub mod replay;
mod simulate;
mod template;

pub use engine::Deadlock;
pub use forecast::{
    Forecast, QuickForecast, forecast, fullest, quick_forecast, quick_memory, step_time_for_ranking,
};
pub use kinds::time_by_kind;
pub use repeated::{Kind, Piece, Repeated, Waiting};
pub use simulate::{hardware_flops, simulate, step_time};
pub use template::Detail;
