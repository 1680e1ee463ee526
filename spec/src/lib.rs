//! The shared vocabulary: what is trained, on what, how, and the program of ops that a plan is compiled to.
//!
//! ```
//! use trainwright_spec::cluster::Cluster;
//! use trainwright_spec::model::preset::preset;
//! use trainwright_spec::plan::Plan;
//!
//! // Models and clusters have names in the catalog; users' files are read the same way.
//! assert_eq!(preset("llama-3-8b")?.parameters(), 8_030_261_248);
//! assert_eq!(Cluster::from_name("dgx-h100:16")?.gpus(), 128);
//!
//! // A plan names them, and makes every choice.
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
//! assert_eq!(plan.mesh.ranks(), 8);
//! # Ok::<(), trainwright_spec::error::SpecError>(())
//! ```

pub mod adapters;
pub mod calibration;
pub mod catalog;
pub mod cluster;
pub mod collective;
pub mod context;
pub mod data;
pub mod error;
pub mod experts;
pub mod job;
pub mod library;
pub mod limits;
pub mod mesh;
pub mod model;
pub mod nccl;
pub mod optimizer;
pub mod plan;
pub mod precision;
pub mod program;
pub mod reliability;
pub mod rl;
pub mod schedule;
pub mod serving;
pub mod sourced;
pub mod stack;
pub mod statistics;
pub mod tensor;
pub mod toml_text;
pub mod units;

/// The page about new schedules: its example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../docs/adding-a-schedule.md")]
pub struct AddingASchedule;
