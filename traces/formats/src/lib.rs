//! Other tools' files: plans out to them (`export`) and in from them (`import`), traces of profilers (`kineto`, `nsight`) as
//! `measured` steps, execution traces (`chakra`), logs of collectives (`nccl_tests`), event files (`tensorboard`).
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
//! Nothing here touches a terminal or a file.

pub mod chakra;
pub mod details;
pub mod export;
pub mod import;
pub mod kineto;
pub mod measured;
pub mod nccl_tests;
pub mod nsight;
pub mod serving_commands;
pub mod tensorboard;
pub mod vllm_bench;
