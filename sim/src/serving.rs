//! Serving: how long a step of an engine takes, and what becomes of requests that its scheduler batches.
//!
//! ```text
//! Model, Cluster, ServingPlan ─► StepModel ── Batch ─► StepTime
//!                                                        │
//! Load (requests, or clients) ─► Queue ── Policy ─► work of a step ─► Served: times of every request
//! ```
//!
//! A step runs chunks of prompts and single tokens of running sequences together. Its kernels are those of `libraries`, its
//! collectives the library's own or those of `network`.

mod exchange;
mod formats;
mod growth;
mod instance;
mod load;
mod memory;
mod policies;
mod queue;
mod simulate;
mod step;
mod step_source;

pub use growth::Growth;
pub use instance::Instance;
pub use load::{Load, Request, mean_rate};
pub use memory::{MemoryUse, memory};
pub use policies::{POLICIES, Policy, policy};
pub use queue::{Limits, Queue, Work};
pub use simulate::{Sample, Served, ServedRequest, ServingError, serve};
pub use step::{Batch, Part, StepModel, StepTime};
pub use step_source::StepSource;
