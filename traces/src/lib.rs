//! Timelines: what a training step looks like in time, whoever ran it, and everything that reads one.
//!
//! ```text
//! Timeline ─┬─► report   where the time and the memory went, as numbers
//!           ├─► draw     the pipeline as text
//!           ├─► chrome   a trace file for ui.perfetto.dev
//!           ├─► picture  the pipeline as SVG
//!           └─► html     a page with all of it, to be zoomed
//! ```
//!
//! What others measured is read and drawn here too: logs of nccl-tests (`nccl_tests`), the published sweeps that ship
//! with the program (`published`), tables of training runs (`training`), and plots of collectives by size (`plot`).
//!
//! Plans go out to other tools and come in from them: `export` and `import`.
//!
//! ```
//! use trainwright_spec::plan::Plan;
//! use trainwright_formats::export::{export, exporter};
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
//! let exported = export(&plan, exporter("megatron-lm")?);
//! assert!(exported.files[0].text.contains("--tensor-model-parallel-size 2"));
//! // A choice that the tool cannot express is listed with its value and the reason.
//! assert!(exported.omissions.iter().any(|omission| omission.to_string().starts_with("cluster = ")));
//! # Ok::<(), trainwright_spec::error::SpecError>(())
//! ```
//!
//! Nothing here knows whether a timeline was simulated or measured, and nothing here touches a terminal or a file.

mod actions;
pub mod chakra;
pub mod chrome;
pub mod comparison;
pub mod draw;
pub mod export;
pub mod html;
pub mod import;
pub mod kinds;
pub mod kineto;
pub mod measured;
mod memory;
pub mod nccl_tests;
pub mod nsight;
pub mod picture;
pub mod plot;
pub mod published;
pub mod report;
mod sweep;
pub mod timeline;
pub mod training;
