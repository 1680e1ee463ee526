//! Measures machines by running the executor on them. It drives `train` and `comm`; nothing below imports it.

mod abilities;
pub(crate) mod calibrate;
mod device_ops;
mod recording_cost;

pub use abilities::{Abilities, abilities};
pub use device_ops::{MeasuredDevice, measure_ops};
pub use recording_cost::recording_cost;
