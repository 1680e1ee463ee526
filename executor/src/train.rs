//! Trains a plan: what a rank holds, what its ops do, and the run that all ranks form.
//!
//! ```text
//! run ─► a thread for each rank here ─► rank ─ instructions ─► modules, layer_collectives, update
//!  │                                     └─ holds ─► state (weights, gradients, moments), frames (activations)
//!  ├─ data: tokens, batches             ├─ records ─► record, timeline
//!  ├─ checkpoint                        └─ communicates ─► comm, computes ─► device
//!  └─ generation: the same ranks' forward passes, token by token
//! ```
//!
//! Nothing here measures a machine or knows what an op should cost.

pub(crate) mod checkpoint;
pub(crate) mod data;
pub(crate) mod frame;
pub(crate) mod generation;
pub(crate) mod graph_capture;
mod groups;
pub(crate) mod instruction;
mod layer_collectives;
pub(crate) mod learning_rate;
mod masks;
mod module_collectives;
mod modules;
mod offload_store;
mod optimizer;
pub(crate) mod parameters;
mod program_routes;
mod rank;
pub(crate) mod record;
pub(crate) mod run;
mod run_context;
pub(crate) mod settings;
mod sizes;
mod state;
pub(crate) mod supported;
pub(crate) mod timeline;
mod update;
