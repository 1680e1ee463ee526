//! The compiler: from a plan to its program, and, from the same parts, to its memory in closed form.
//!
//! ```text
//! Plan ─► part: what a block runs ─► emit: ops ─► stage: segments of a pass ─► program: calls, groups, ranks
//!              attention, experts, ends …             data, offload, update           classes: which ranks stand for all
//!                        └────────────────────────────────► memory: the peak of each pipeline rank, without a schedule's timeline
//! ```
//!
//! Each stage becomes a few segments: forward, backward, and variants of them that carry what the data axis does once a
//! step (the first forward gathers weights, the last backward reduces gradients). A last segment per rank
//! finishes the step: what was not overlapped, gradient norm, optimizer.
//!
//! ```
//! use trainwright_lower::{lower, memory::plan_memory};
//! use trainwright_spec::plan::Plan;
//!
//! let text = r#"
//! model = "gpt2"
//! cluster = "dgx-a100"
//! stack = "megatron-core"
//! job = { sequence = 1024, global_batch = 16, precision = "bf16", optimizer = "adamw", gradient_clipping = true }
//! mesh = { tensor = 2, pipeline = 2, data = 2 }
//! micro_batch = 1
//! schedule = "1f1b"
//! virtual_stages = 1
//! sequence_parallel = true
//! data_sharding = "zero1"
//! stages = ["6 none", "1 full, 5 none"]
//! "#;
//! let plan = Plan::from_toml(text, "plan.toml")?;
//!
//! // What each pipeline rank holds, and which ops every rank runs.
//! assert!(plan_memory(&plan).iter().all(|rank| rank.total() < plan.cluster.node.gpu.memory.value));
//! assert!(!lower(&plan).ranks.is_empty());
//! # Ok::<(), trainwright_spec::error::SpecError>(())
//! ```

mod adapters;
mod attention;
mod attention_core;
mod block;
mod classes;
mod data;
mod elementwise;
mod emit;
mod ends;
mod experts;
mod feed_forward;
mod indexer;
mod linear;
mod matrices;
pub mod memory;
mod messages;
mod mixer;
mod offload;
mod part;
mod passes;
mod process;
mod program;
mod recompute;
mod shape;
mod stage;
mod state;
mod step;
mod update;
mod weight_gradient;

pub use adapters::Frozen;
pub use classes::simulated_ranks;
pub use matrices::MatrixCall;
pub use messages::{least_message, messages_in_line};
pub use program::{
    Lengths, lower, lower_every_copy, lower_every_rank, lower_forward, lower_lengths, lower_steps,
};
pub use stage::StageCost;
pub use state::{LayerParameters, StateSegments, update_segment};
