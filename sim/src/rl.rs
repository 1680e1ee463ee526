//! A step of a reinforcement-learning loop: its phases in time, and the memory of each.
//!
//! ```text
//! RlPlan ─┬─► generation: a batch of requests through the serving simulator, tail included
//!         ├─► passes: forward programs for probabilities and values, training programs for updates, both of packed samples
//!         └─► sync: weights to the engine, state to the host and back
//!                   └─► forecast: the phases by mode, in line or beside each other
//! ```
//!
//! Nothing here has costs of its own: kernels and collectives are those of training and serving.

mod forecast;
mod generation;
mod memory;
mod packing;
mod passes;
mod sync;

pub use forecast::{
    Lane, PhaseTime, RlError, RlForecast, TrainingTimes, assembled, rl_forecast, training_times,
};
pub use generation::{Generated, generate, requests_of};
pub use memory::{HostMemory, LoopMemory, PhaseMemory, loop_memory, training_memory};
pub use packing::{Packed, packed};
pub use passes::{EqualSamples, SEQUENCE_UNIT, forward_time, microbatches_of_updates};
pub use sync::sync_time;
